// Synchronised batch norm on two ranks, in C++17: two processes, which exchange statistics and sums
// through HCCL. The batches are uneven, and the results are those of one batch norm over both.

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

#include "aclnnop/aclnn_batch_norm_backward_reduce.h"
#include "aclnnop/aclnn_batch_norm_elemt.h"
#include "aclnnop/aclnn_batch_norm_elemt_backward.h"
#include "aclnnop/aclnn_batch_norm_gather_stats_with_counts.h"
#include "aclnnop/aclnn_batch_norm_stats.h"
#include "hccl/hccl.h"
#include "host.h"

namespace {

constexpr int64_t kRanks = 2, kChannels = 2, kLength = 5;
constexpr double kEps = 1e-5, kMomentum = 0.1;

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
    void *data() const { return made_.data; }

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
    double count() const { return double(size * kLength); }
};

const std::array<Batch, kRanks> kBatches{Batch(3, 1), Batch(1, 2)};
const std::vector<float> kWeight{1.5f, -0.5f}, kBias{0.25f, 2};

std::size_t channel_of(std::size_t i)
{
    return i / kLength % kChannels;
}

// Both phases of an operator, of which phase 1 is called with the given arguments.
template <typename Phase1, typename Phase2, typename... Arguments>
void run(aclrtStream stream, Phase1 phase1, Phase2 phase2, const Arguments &...arguments)
{
    uint64_t size = 0;
    aclOpExecutor *executor = nullptr;
    MUST(phase1(arguments..., &size, &executor));
    void *workspace = make_workspace(size);
    MUST(phase2(workspace, size, executor, stream));
    MUST(aclrtSynchronizeStream(stream));
    if (workspace)
        MUST(aclrtFree(workspace));
}

// The largest difference of a rank's results from the formula over both batches, in float64.
double difference(const Batch &mine, const std::vector<float> &y, const std::vector<float> &dx,
                  const std::vector<float> &running_mean, const std::vector<float> &running_var)
{
    double largest = 0, count = 0;
    std::array<double, kChannels> mean{}, var{}, sum_dy{}, sum_dy_xmu{};
    for (const Batch &each : kBatches) {
        count += each.count();
        for (std::size_t i = 0; i < each.x.size(); ++i)
            mean[channel_of(i)] += each.x[i];
    }
    for (double &each : mean)
        each /= count;
    for (const Batch &each : kBatches)
        for (std::size_t i = 0; i < each.x.size(); ++i) {
            const std::size_t c = channel_of(i);
            const double xmu = each.x[i] - mean[c];
            var[c] += xmu * xmu / count;
            sum_dy[c] += each.dy[i];
            sum_dy_xmu[c] += each.dy[i] * xmu;
        }
    for (std::size_t i = 0; i < y.size(); ++i) {
        const std::size_t c = channel_of(i);
        const double xmu = mine.x[i] - mean[c], invstd = 1 / std::sqrt(var[c] + kEps);
        const double slope = xmu * invstd * invstd * sum_dy_xmu[c] / count;
        const double wanted = kWeight[c] * invstd * (mine.dy[i] - sum_dy[c] / count - slope);
        largest = std::max(largest, std::abs(kWeight[c] * invstd * xmu + kBias[c] - y[i]));
        largest = std::max(largest, std::abs(wanted - dx[i]));
    }
    for (std::size_t c = 0; c < kChannels; ++c) {
        const double unbiased = var[c] * count / (count - 1);
        largest = std::max(largest, std::abs(kMomentum * mean[c] - running_mean[c]));
        largest = std::max(largest, std::abs(1 + kMomentum * (unbiased - 1) - running_var[c]));
    }
    return largest;
}

// One rank's forward and backward pass; the largest difference of all ranks.
double work(uint32_t rank, const HcclRootInfo &root)
{
    aclrtStream stream;
    uint32_t devices = 0;
    MUST(aclrtGetDeviceCount(&devices));
    const int32_t device = static_cast<int32_t>(rank % devices);
    MUST(aclrtSetDevice(device));
    MUST(aclrtCreateStream(&stream));
    HcclComm comm;
    MUST(HcclCommInitRootInfo(kRanks, &root, rank, &comm));
    double largest = 0;
    {
        const auto gather = [&](const Tensor &mine, const Tensor &all, uint64_t count) {
            MUST(HcclAllGather(mine.data(), all.data(), count, HCCL_DATA_TYPE_FP32, comm, stream));
        };
        const auto reduce = [&](const Tensor &mine, uint64_t count, HcclReduceOp op) {
            MUST(HcclAllReduce(mine.data(), mine.data(), count, HCCL_DATA_TYPE_FP32, op, comm,
                               stream));
        };
        const Batch &batch = kBatches[rank];
        const std::vector<float> count{static_cast<float>(batch.count())};
        Tensor input(batch.shape(), batch.x), grad_out(batch.shape(), batch.dy);
        // Rank 0 has the parameters.
        Tensor weight({kChannels}, rank == 0 ? kWeight : std::vector<float>(kChannels));
        Tensor bias({kChannels}, kBias), my_count({1}, count), counts({kRanks});
        MUST(HcclBroadcast(weight.data(), kChannels, HCCL_DATA_TYPE_FP32, 0, comm, stream));

        // The rank's own statistics, all ranks' statistics, and those of both batches together.
        Tensor my_mean({kChannels}), my_invstd({kChannels});
        Tensor means({kRanks, kChannels}), invstds({kRanks, kChannels});
        Tensor mean({kChannels}), invstd({kChannels});
        Tensor running_mean({kChannels}, {0, 0}), running_var({kChannels}, {1, 1});
        run(stream, aclnnBatchNormStatsGetWorkspaceSize, aclnnBatchNormStats, input, kEps, my_mean,
            my_invstd);
        gather(my_mean, means, kChannels);
        gather(my_invstd, invstds, kChannels);
        gather(my_count, counts, 1);
        run(stream, aclnnBatchNormGatherStatsWithCountsGetWorkspaceSize,
            aclnnBatchNormGatherStatsWithCounts, input, means, invstds, running_mean, running_var,
            kMomentum, kEps, counts, mean, invstd);
        Tensor output(batch.shape());
        run(stream, aclnnBatchNormElemtGetWorkspaceSize, aclnnBatchNormElemt, input, weight, bias,
            mean, invstd, kEps, output);

        // Backward: the rank's own sums, the sums of both ranks, and the rank's own gradient.
        Tensor sum({kChannels}), sum_xmu({kChannels}), dweight({kChannels}), dbias({kChannels});
        run(stream, aclnnBatchNormReduceBackwardGetWorkspaceSize, aclnnBatchNormReduceBackward,
            grad_out, input, mean, invstd, weight, true, true, true, sum, sum_xmu, dweight, dbias);
        reduce(sum, kChannels, HCCL_REDUCE_SUM);
        reduce(sum_xmu, kChannels, HCCL_REDUCE_SUM);
        Tensor grad_input(batch.shape());
        run(stream, aclnnBatchNormElemtBackwardGetWorkspaceSize, aclnnBatchNormElemtBackward,
            grad_out, input, mean, invstd, weight, sum, sum_xmu, counts, grad_input);

        Tensor far({1}, {static_cast<float>(difference(batch, output.values(), grad_input.values(),
                                                       running_mean.values(),
                                                       running_var.values()))});
        reduce(far, 1, HCCL_REDUCE_MAX);
        MUST(HcclBarrier(comm, stream));
        MUST(aclrtSynchronizeStream(stream));
        largest = far.values()[0];
    }
    MUST(HcclCommDestroy(comm));
    MUST(aclrtDestroyStream(stream));
    MUST(aclrtResetDevice(device));
    MUST(aclFinalize());
    return largest;
}

} // namespace

int main()
{
    // Rank 0 sends what HcclGetRootInfo made to rank 1, as MPI would.
    int ends[2], status = 0;
    HcclRootInfo root;
    if (pipe(ends))
        return 1;
    const pid_t child = fork();
    MUST(aclInit(nullptr));
    if (child == 0) {
        if (read(ends[0], &root, sizeof root) != sizeof root)
            return 1;
        return work(1, root) < 1e-5 ? 0 : 1;
    }
    MUST(HcclGetRootInfo(&root));
    if (write(ends[1], &root, sizeof root) != sizeof root)
        return 1;
    const double largest = work(0, root);
    printf("largest difference from one batch norm over both: %.1e\n", largest);
    return waitpid(child, &status, 0) == child && status == 0 && largest < 1e-5 ? 0 : 1;
}
