// Group norm's gradients in C++17: float16, (N, C, HxW) = (2, 4, 6) in 2 groups.

#include <cmath>
#include <vector>

#include "aclnnop/aclnn_group_norm_backward.h"
#include "host.h"

namespace {

constexpr int64_t kBatch = 2, kChannels = 4, kPositions = 6, kGroups = 2;
constexpr int64_t kInGroup = kChannels / kGroups * kPositions;

std::vector<aclFloat16> halves(const std::vector<double> &values)
{
    std::vector<aclFloat16> found;
    for (double value : values)
        found.push_back(aclFloatToFloat16(static_cast<float>(value)));
    return found;
}

// The numbers that the halves stand for.
std::vector<double> numbers(const std::vector<aclFloat16> &values)
{
    std::vector<double> found;
    for (aclFloat16 value : values)
        found.push_back(aclFloat16ToFloat(value));
    return found;
}

} // namespace

int main()
{
    aclrtStream stream;
    start_device(&stream);

    std::vector<double> x, dy, gamma, mean, rstd;
    for (int64_t i = 0; i < kBatch * kChannels * kPositions; ++i) {
        x.push_back(double(i * 7 % 13) / 4);
        dy.push_back(double(i * 5 % 11) / 8 - 0.5);
    }
    for (int64_t c = 0; c < kChannels; ++c)
        gamma.push_back(0.5 + 0.25 * double(c));
    for (int64_t g = 0; g < kBatch * kGroups; ++g) {
        double sum = 0, squares = 0;
        for (int64_t i = 0; i < kInGroup; ++i)
            sum += x[std::size_t(g * kInGroup + i)];
        for (int64_t i = 0; i < kInGroup; ++i)
            squares += std::pow(x[std::size_t(g * kInGroup + i)] - sum / kInGroup, 2);
        mean.push_back(sum / kInGroup);
        rstd.push_back(1 / std::sqrt(squares / kInGroup + 1e-5));
    }

    const int64_t shape[] = {kBatch, kChannels, kPositions}, groups[] = {kBatch, kGroups};
    const int64_t channels[] = {kChannels};
    const auto dy_half = halves(dy), x_half = halves(x), gamma_half = halves(gamma);
    const auto mean_half = halves(mean), rstd_half = halves(rstd);
    auto grad_out = make_tensor(dy_half.data(), ACL_FLOAT16, shape, 3);
    auto input = make_tensor(x_half.data(), ACL_FLOAT16, shape, 3);
    auto means = make_tensor(mean_half.data(), ACL_FLOAT16, groups, 2);
    auto rstds = make_tensor(rstd_half.data(), ACL_FLOAT16, groups, 2);
    auto weight = make_tensor(gamma_half.data(), ACL_FLOAT16, channels, 1);
    auto grad_input = make_tensor(nullptr, ACL_FLOAT16, shape, 3);
    auto grad_gamma = make_tensor(nullptr, ACL_FLOAT16, channels, 1);
    auto grad_beta = make_tensor(nullptr, ACL_FLOAT16, channels, 1);
    const bool all[] = {true, true, true};
    aclBoolArray *mask = aclCreateBoolArray(all, 3);

    uint64_t size = 0;
    aclOpExecutor *executor = nullptr;
    MUST(aclnnGroupNormBackwardGetWorkspaceSize(
        grad_out.tensor, input.tensor, means.tensor, rstds.tensor, weight.tensor, kBatch, kChannels,
        kPositions, kGroups, mask, grad_input.tensor, grad_gamma.tensor, grad_beta.tensor, &size,
        &executor));
    // A repeatable executor runs any number of times, until it is destroyed.
    MUST(aclSetAclOpExecutorRepeatable(executor));
    void *workspace = make_workspace(size);
    for (int step = 0; step < 3; ++step)
        MUST(aclnnGroupNormBackward(workspace, size, executor, stream));
    MUST(aclrtSynchronizeStream(stream));
    MUST(aclDestroyAclOpExecutor(executor));

    std::vector<aclFloat16> dgamma(kChannels), dbeta(kChannels);
    download(grad_gamma, dgamma.data());
    download(grad_beta, dbeta.data());
    // Σ dy·(x − mean)·rstd and Σ dy, over batch and positions.
    const auto xs = numbers(x_half), dys = numbers(dy_half);
    const auto means_ = numbers(mean_half), rstds_ = numbers(rstd_half);
    double largest = 0;
    for (int64_t c = 0; c < kChannels; ++c) {
        double wanted_gamma = 0, wanted_beta = 0;
        for (int64_t n = 0; n < kBatch; ++n)
            for (int64_t p = 0; p < kPositions; ++p) {
                const auto i = std::size_t((n * kChannels + c) * kPositions + p);
                const auto g = std::size_t(n * kGroups + c / (kChannels / kGroups));
                wanted_gamma += dys[i] * (xs[i] - means_[g]) * rstds_[g];
                wanted_beta += dys[i];
            }
        const double got_gamma = aclFloat16ToFloat(dgamma[std::size_t(c)]);
        const double got_beta = aclFloat16ToFloat(dbeta[std::size_t(c)]);
        printf("channel %ld: grad_gamma %8.4f, grad_beta %8.4f\n", long(c), got_gamma, got_beta);
        largest = std::max(largest, std::abs(got_gamma - wanted_gamma));
        largest = std::max(largest, std::abs(got_beta - wanted_beta));
    }
    printf("largest difference from the formula: %.1e\n", largest);

    for (const auto &each : {grad_out, input, means, rstds, weight, grad_input, grad_gamma, grad_beta})
        destroy_tensor(each);
    MUST(aclDestroyBoolArray(mask));
    if (workspace)
        MUST(aclrtFree(workspace));
    end_device(stream);
    // A float16 below 4 is half a unit in the last place off, 2^-10, and a little more.
    return largest < 1.05 / 1024 ? 0 : 1;
}
