// Synchronised batch norm's backward on two ranks, in C++17: each rank reduces its own batch, the
// sums are added (a collective's work), and each rank computes its own grad_input. The batches are
// uneven, and the result is that of one batch norm over both.

#include <array>
#include <cmath>
#include <vector>

#include "aclnnop/aclnn_batch_norm_backward_reduce.h"
#include "aclnnop/aclnn_batch_norm_elemt_backward.h"
#include "host.h"

namespace {

constexpr int64_t kChannels = 2, kLength = 5;

// Device memory with a float32 tensor over it, destroyed with its scope.
class Tensor {
public:
    Tensor(std::vector<int64_t> shape, const std::vector<float> &values)
        : made_(make_tensor(values.data(), ACL_FLOAT, shape.data(), shape.size()))
    {
    }
    explicit Tensor(std::vector<int64_t> shape)
        : made_(make_tensor(nullptr, ACL_FLOAT, shape.data(), shape.size()))
    {
    }
    Tensor(const Tensor &) = delete;
    Tensor &operator=(const Tensor &) = delete;
    ~Tensor() { destroy_tensor(made_); }

    operator aclTensor *() const { return made_.tensor; }

    std::vector<float> values() const
    {
        std::vector<float> found(made_.size / sizeof(float));
        download(made_, found.data());
        return found;
    }

private:
    device_tensor made_;
};

struct Batch {
    int64_t size;
    std::vector<float> x, dy;

    explicit Batch(int64_t n, unsigned seed) : size(n)
    {
        for (int64_t i = 0; i < n * kChannels * kLength; ++i) {
            seed = seed * 1103515245u + 12345u;
            x.push_back(static_cast<float>(seed >> 16 & 1023) / 512 - 1);
            dy.push_back(static_cast<float>(seed >> 6 & 1023) / 512 - 1);
        }
    }
    std::vector<int64_t> shape() const { return {size, kChannels, kLength}; }
};

std::size_t channel_of(std::size_t i)
{
    return i / kLength % kChannels;
}

template <typename Phase2>
void run(uint64_t size, aclOpExecutor *executor, aclrtStream stream, Phase2 phase2)
{
    void *workspace = make_workspace(size);
    MUST(phase2(workspace, size, executor, stream));
    MUST(aclrtSynchronizeStream(stream));
    if (workspace)
        MUST(aclrtFree(workspace));
}

} // namespace

int main()
{
    aclrtStream stream;
    start_device(&stream);
    const std::array<Batch, 2> ranks{Batch(3, 1), Batch(1, 2)};
    const std::vector<float> weight{1.5f, -0.5f};
    const double count = (ranks[0].size + ranks[1].size) * double(kLength);

    // The statistics of both batches together.
    std::array<double, kChannels> sum{}, squares{}, sum_dy_all{}, sum_dy_xmu_all{};
    std::vector<float> mean(kChannels), invstd(kChannels);
    for (const Batch &rank : ranks)
        for (std::size_t i = 0; i < rank.x.size(); ++i)
            sum[channel_of(i)] += rank.x[i];
    for (const Batch &rank : ranks)
        for (std::size_t i = 0; i < rank.x.size(); ++i)
            squares[channel_of(i)] += std::pow(rank.x[i] - sum[channel_of(i)] / count, 2);
    for (std::size_t c = 0; c < kChannels; ++c) {
        mean[c] = static_cast<float>(sum[c] / count);
        invstd[c] = static_cast<float>(1 / std::sqrt(squares[c] / count + 1e-5));
    }

    // Each rank's own sums, added: what an all-reduce does.
    std::vector<float> sum_dy(kChannels), sum_dy_xmu(kChannels);
    for (const Batch &rank : ranks) {
        Tensor grad_out(rank.shape(), rank.dy), input(rank.shape(), rank.x);
        Tensor means({kChannels}, mean), invstds({kChannels}, invstd), gamma({kChannels}, weight);
        Tensor mine({kChannels}), mine_xmu({kChannels}), dweight({kChannels}), dbias({kChannels});
        uint64_t size = 0;
        aclOpExecutor *executor = nullptr;
        MUST(aclnnBatchNormReduceBackwardGetWorkspaceSize(grad_out, input, means, invstds, gamma,
                                                          true, true, true, mine, mine_xmu,
                                                          dweight, dbias, &size, &executor));
        run(size, executor, stream, aclnnBatchNormReduceBackward);
        for (std::size_t c = 0; c < kChannels; ++c) {
            sum_dy[c] += mine.values()[c];
            sum_dy_xmu[c] += mine_xmu.values()[c];
        }
        for (std::size_t i = 0; i < rank.x.size(); ++i) {
            sum_dy_all[channel_of(i)] += rank.dy[i];
            sum_dy_xmu_all[channel_of(i)] += double(rank.dy[i]) * (rank.x[i] - mean[channel_of(i)]);
        }
    }

    double largest = 0;
    for (const Batch &rank : ranks) {
        Tensor grad_out(rank.shape(), rank.dy), input(rank.shape(), rank.x);
        Tensor means({kChannels}, mean), invstds({kChannels}, invstd), gamma({kChannels}, weight);
        Tensor sums({kChannels}, sum_dy), sums_xmu({kChannels}, sum_dy_xmu);
        Tensor counts({2}, {float(ranks[0].size * kLength), float(ranks[1].size * kLength)});
        Tensor grad_input(rank.shape());
        uint64_t size = 0;
        aclOpExecutor *executor = nullptr;
        MUST(aclnnBatchNormElemtBackwardGetWorkspaceSize(grad_out, input, means, invstds, gamma,
                                                         sums, sums_xmu, counts, grad_input, &size,
                                                         &executor));
        run(size, executor, stream, aclnnBatchNormElemtBackward);
        const std::vector<float> dx = grad_input.values();
        printf("rank with a batch of %ld: grad_input %9.6f %9.6f %9.6f ...\n", long(rank.size),
               dx[0], dx[1], dx[2]);
        for (std::size_t i = 0; i < dx.size(); ++i) {
            const std::size_t c = channel_of(i);
            const double xmu = rank.x[i] - mean[c];
            const double slope = xmu * invstd[c] * invstd[c] * sum_dy_xmu_all[c] / count;
            const double wanted =
                weight[c] * invstd[c] * (rank.dy[i] - sum_dy_all[c] / count - slope);
            largest = std::max(largest, std::abs(wanted - dx[i]));
        }
    }
    printf("largest difference from one batch norm over both: %.1e\n", largest);
    end_device(stream);
    return largest < 1e-5 ? 0 : 1;
}
