// How plans are found and run; see plans.h.

#include "plans.h"

#include <ATen/EmptyTensor.h>
#include <ATen/Parallel.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/functions/utils.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstring>
#include <mutex>
#include <unordered_map>

#ifdef __linux__
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>
#endif

namespace normgrad {
namespace {

// The number of plans that are kept of one operator.
constexpr size_t kMostPlans = 4096;
// The number of addresses that a driver reads, and the roles of the first two (problem.py).
constexpr int64_t kPlaces = 32, kGradOut = 0, kInput = 1;
// The dtypes of results, by the numbers of extension.py.
constexpr std::array kDtypes{at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kLong};
// Results of at least this size ask for huge pages, as in pages.py.
constexpr int64_t kHuge = 4 << 20;

// A step of launches, as in driver.py of the Triton backend: CUDA's CUlaunchConfig up to the stream,
// the kernel's handle, and the parameters after the addresses.
constexpr int64_t kConfigStream = 4, kConfigFields = 7, kKernel = kConfigStream;
constexpr int64_t kConstantCount = kKernel + 1, kConstants = kKernel + 2, kParametersMax = 160;
constexpr int64_t kLaunchFields = kConstants + kParametersMax, kAlignedBits = 4;

using Launch = int32_t (*)(int64_t* config, int64_t kernel, void** parameters, void** extra);
using StreamOf = int32_t (*)(int32_t device, void** stream);
using Driver = int64_t (*)(const int64_t* program, int64_t team, int64_t threads, int64_t* places);

// The team whose threads are PyTorch's, and how many of them a call may use; 0 for PyTorch's number.
std::atomic<int64_t> team{0}, most_threads{0};
// The largest number of threads that Python has started for calls of this thread.
thread_local int64_t started_threads = 1;
thread_local int64_t thread_number = 0, thread_count = 1;
thread_local std::shared_ptr<const Plan> handed_over;
thread_local bool is_waiting = false;

struct Hash {
  size_t operator()(const Words& words) const {
    uint64_t hash = words.size();
    for (int64_t word : words) {
      hash = (hash ^ static_cast<uint64_t>(word)) * 0x9E3779B97F4A7C15u;
      hash ^= hash >> 29;
    }
    return hash;
  }
};

// Reads words one after the other.
class Reader {
 public:
  Reader(const int64_t* words, int64_t count) : at_(words), end_(words + count) {}
  int64_t next() {
    TORCH_CHECK(at_ < end_, "normgrad: a plan's description is too short");
    return *at_++;
  }
  std::vector<int64_t> list() {
    const int64_t size = next();
    TORCH_CHECK(size <= end_ - at_, "normgrad: a plan's description is too short");
    std::vector<int64_t> found(at_, at_ + size);
    at_ += size;
    return found;
  }

 private:
  const int64_t *at_, *end_;
};

std::shared_ptr<const Plan> read_plan(Reader words) {
  auto plan = std::make_shared<Plan>();
  plan->driver = words.next();
  plan->parallel = words.next();
  plan->launch = words.next();
  plan->stream_of = words.next();
  plan->aligned = words.next();
  plan->workspace = words.next();
  plan->alignment = words.next();
  plan->workspace_slot = words.next();
  plan->program[2] = words.next();
  plan->block = words.list();
  plan->steps = words.list();
  plan->program[0] = reinterpret_cast<int64_t>(plan->block.data());
  plan->program[1] = reinterpret_cast<int64_t>(plan->steps.data());
  plan->slots = words.list();
  for (int64_t count = words.next(); count > 0; --count) {
    Result result;
    result.kind = static_cast<Result::Kind>(words.next());
    result.slot = words.next();
    result.input = words.next();
    result.dtype = kDtypes.at(words.next());
    result.bytes = words.next();
    result.sizes = words.list();
    result.strides = words.list();
    plan->results.push_back(std::move(result));
  }
  return plan;
}

struct Range {
  int64_t low, high;
  bool meets(const Range& other) const {
    return low < other.high && other.low < high;
  }
};

// A storage of which an earlier call of this thread found a range writable.
struct Writable {
  c10::weak_intrusive_ptr<c10::StorageImpl> storage;
  Range range;
};
thread_local std::array<std::optional<Writable>, 64> writable;

// The addresses from a tensor's first byte to one past its last.
Range range_of(const at::Tensor& tensor) {
  const auto start = reinterpret_cast<int64_t>(tensor.const_data_ptr());
  if (tensor.numel() == 0) {
    return {start, start};
  }
  int64_t last = 0;
  for (int64_t axis = 0; axis < tensor.dim(); ++axis) {
    last += (tensor.size(axis) - 1) * tensor.stride(axis);
  }
  return {start, start + (last + 1) * static_cast<int64_t>(tensor.itemsize())};
}

// Whether the system surely lets this process write to a range. Its error is the same for read-only
// memory as on a Linux that does not know the question (before 5.14), so that Python finds out.
bool can_be_written(const Range& range) {
#ifdef __linux__
  constexpr int kPopulateWrite = 23;
  static const int64_t page = sysconf(_SC_PAGESIZE);
  const int64_t first = range.low / page * page;
  const auto size = static_cast<size_t>(range.high - first);
  return madvise(reinterpret_cast<void*>(first), size, kPopulateWrite) == 0;
#else
  return true;
#endif
}

// Whether a tensor that is overwritten shares no memory with others, and can be written.
bool can_be_overwritten(c10::ArrayRef<at::Tensor> tensors, int64_t index) {
  const Range range = range_of(tensors[index]);
  for (int64_t other = 0; other < static_cast<int64_t>(tensors.size()); ++other) {
    if (other != index && tensors[other].defined() && range.meets(range_of(tensors[other]))) {
      return false;
    }
  }
  if (!tensors[index].is_cpu()) {
    return true;
  }
  // The system is asked once for each storage, which takes a tenth of a small layer's time. A weak
  // reference keeps another storage from having its address.
  const auto& storage = tensors[index].storage();
  auto& seen = writable[static_cast<size_t>(range.low >> 6) % writable.size()];
  if (seen && seen->storage._unsafe_get_target() == storage.unsafeGetStorageImpl() &&
      seen->range.low == range.low && seen->range.high == range.high) {
    return true;
  }
  if (!can_be_written(range)) {
    return false;
  }
  seen.emplace(Writable{storage.getWeakStorageImpl(), range});
  return true;
}

at::Tensor make(const Result& result, const at::Tensor& like) {
  if (!like.is_cpu()) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    return at::empty_strided(result.sizes, result.strides, like.options().dtype(result.dtype));
  }
  at::Tensor made = at::detail::empty_strided_cpu(result.sizes, result.strides, result.dtype);
#ifdef __linux__
  if (result.bytes >= kHuge) {
    static const int64_t page = sysconf(_SC_PAGESIZE);
    const auto start = reinterpret_cast<int64_t>(made.const_data_ptr());
    const int64_t first = (start + page - 1) / page * page;
    const int64_t end = (start + result.bytes) / page * page;
    madvise(reinterpret_cast<void*>(first), static_cast<size_t>(end - first), MADV_HUGEPAGE);
  }
#endif
  return made;
}

// Launches a plan's kernels on PyTorch's current stream, as driver.py of the Triton backend
// describes them; false if CUDA has accepted none.
bool launch_all(const Plan& plan, const at::Device& device, int64_t* places) {
  const c10::DeviceGuard guard(device);
  void* stream = nullptr;
  if (plan.stream_of != 0 &&
      reinterpret_cast<StreamOf>(plan.stream_of)(device.index(), &stream) != 0) {
    return false;
  }
  int64_t aligned = 0;
  for (int64_t place : {2, 1, 0}) {
    aligned = aligned << kAlignedBits | (places[place] & ((1 << kAlignedBits) - 1));
  }
  if (aligned != plan.aligned) {
    return false;
  }
  const auto start = reinterpret_cast<Launch>(plan.launch);
  for (int64_t index = 0; index < plan.program[2]; ++index) {
    auto* step = const_cast<int64_t*>(plan.steps.data()) + index * kLaunchFields;
    int64_t config[kConfigFields] = {};
    std::copy_n(step, kConfigStream, config);
    config[kConfigStream] = reinterpret_cast<int64_t>(stream);
    void* parameters[kPlaces + kParametersMax];
    const int64_t addresses = plan.workspace_slot + 1;
    for (int64_t place = 0; place < addresses; ++place) {
      parameters[place] = places + place;
    }
    for (int64_t constant = 0; constant < step[kConstantCount]; ++constant) {
      parameters[addresses + constant] = step + kConstants + constant;
    }
    const int32_t status = start(config, step[kKernel], parameters, nullptr);
    TORCH_CHECK(status == 0 || index == 0, "normgrad: CUDA refused a launch with status ", status);
    if (status != 0) {
      return false;
    }
  }
  return true;
}

// The lock of all operators' plans, which lives as long as the process.
std::mutex& plans_lock() {
  static auto& lock = *new std::mutex();
  return lock;
}

#ifdef __linux__
// A child of fork(2) has none of its parent's threads, and cannot start OpenMP's anew. No other
// thread may hold the lock when the child is made, since it would never be free there.
const int at_fork = pthread_atfork(
    [] { plans_lock().lock(); }, [] { plans_lock().unlock(); },
    [] {
      plans_lock().unlock();
      started_threads = 1;
    });
#endif

}  // namespace

void Signature::add(const at::Tensor& tensor) {
  if (!tensor.defined()) {
    words_.push_back(-1);
    return;
  }
  const auto device = tensor.device();
  words_.push_back(
      static_cast<int64_t>(tensor.scalar_type()) | tensor.dim() << 8 |
      static_cast<int64_t>(device.type()) << 16 | static_cast<int64_t>(device.index() + 1) << 32);
  words_.insert(words_.end(), tensor.sizes().begin(), tensor.sizes().end());
  words_.insert(words_.end(), tensor.strides().begin(), tensor.strides().end());
  if (!tensor.is_cpu() && tensor.numel() > 0) {  // a GPU's kernels are compiled for an alignment
    const auto address = reinterpret_cast<int64_t>(tensor.const_data_ptr());
    words_.push_back(address & ((1 << kAlignedBits) - 1));
  }
}

bool Signature::add(const c10::IValue& value) {
  if (value.isTensor()) {
    add(value.toTensor());
  } else if (value.isNone()) {
    words_.push_back(-1);
  } else if (value.isBool()) {
    words_.push_back(value.toBool());
  } else if (value.isInt()) {
    words_.push_back(value.toInt());
  } else if (value.isDouble()) {
    const double number = value.toDouble();
    if (std::isnan(number)) {  // PyTorch computes with it; and one has the bits of None's word
      return false;
    }
    int64_t bits = 0;
    std::memcpy(&bits, &number, sizeof bits);
    words_.push_back(bits);
  } else if (value.isIntList()) {
    const auto list = value.toIntVector();
    words_.push_back(static_cast<int64_t>(list.size()));
    words_.insert(words_.end(), list.begin(), list.end());
  } else if (value.isBoolList()) {
    int64_t bits = 1;
    for (bool each : value.toBoolList()) {
      bits = bits << 1 | static_cast<int64_t>(each);
    }
    words_.push_back(bits);
  } else {
    return false;
  }
  return true;
}

struct Store::Map {
  std::unordered_map<Words, std::shared_ptr<const Plan>, Hash> plans;
};

Store::Store() : map_(std::make_unique<Map>()) {}
Store::~Store() = default;

std::shared_ptr<const Plan> Store::find(const Signature& signature) const {
  const std::lock_guard lock(plans_lock());
  const auto found = map_->plans.find(signature.words());
  return found == map_->plans.end() ? nullptr : found->second;
}

void Store::keep(const Signature& signature, std::shared_ptr<const Plan> plan) {
  const std::lock_guard lock(plans_lock());
  if (map_->plans.size() >= kMostPlans) {
    map_->plans.clear();
  }
  map_->plans[signature.words()] = std::move(plan);
}

Wait::Wait(bool waits) : before_(std::exchange(is_waiting, waits)) {
  handed_over = nullptr;
}

Wait::~Wait() {
  is_waiting = before_;
}

std::shared_ptr<const Plan> Wait::take() {
  return std::exchange(handed_over, nullptr);
}

bool is_plain(const at::Tensor& tensor) {
  using Key = c10::DispatchKey;
  constexpr c10::DispatchKeySet plain(
      {Key::CPU, Key::CUDA, Key::AutogradCPU, Key::AutogradCUDA, Key::AutocastCPU,
       Key::AutocastCUDA, Key::ADInplaceOrView});
  if (!tensor.defined()) {
    return true;
  }
  if ((tensor.key_set() | plain) != plain || torch::autograd::isFwGradDefined(tensor)) {
    return false;
  }
  if (tensor.numel() == 0) {
    return true;
  }
  const auto end = range_of(tensor).high - reinterpret_cast<int64_t>(tensor.const_data_ptr());
  const auto offset = tensor.storage_offset() * static_cast<int64_t>(tensor.itemsize());
  return tensor.const_data_ptr() != nullptr &&
      static_cast<int64_t>(tensor.storage().nbytes()) >= offset + end;
}

bool is_unobserved() {
  return (c10::impl::tls_local_dispatch_key_set().included_ - c10::default_included_set).empty();
}

bool run(const Plan& plan, c10::ArrayRef<at::Tensor> tensors, Tensors& results) {
  int64_t threads = 1;
  if (plan.parallel) {
    const int64_t most = most_threads;
    threads = most > 0 ? most : at::get_num_threads();
    if (threads > started_threads) {
      return false;
    }
  }
  int64_t places[kPlaces] = {};
  for (size_t index = 0; index < tensors.size(); ++index) {
    if (plan.slots[index] >= 0 && tensors[index].defined()) {
      places[plan.slots[index]] = reinterpret_cast<int64_t>(tensors[index].const_data_ptr());
    }
  }
  at::DataPtr workspace;
  const at::Device device = tensors[0].device();
  try {
    for (const Result& result : plan.results) {
      at::Tensor made;
      if (result.kind == Result::New) {
        made = make(result, tensors[0]);
      } else if (result.kind == Result::InPlace) {
        made = tensors[result.input];
        if (!can_be_overwritten(tensors, result.input)) {
          return false;
        }
      }
      if (result.slot >= 0) {
        places[result.slot] = reinterpret_cast<int64_t>(made.mutable_data_ptr());
      }
      results.push_back(std::move(made));
    }
    if (plan.workspace > 0) {
      // On a GPU it may be freed before the kernels end: only later work on the stream gets it.
      const c10::OptionalDeviceGuard guard(device);
      workspace = c10::GetAllocator(device.type())->allocate(plan.workspace);
      const auto start = reinterpret_cast<int64_t>(workspace.get());
      places[plan.workspace_slot] = (start + plan.alignment - 1) / plan.alignment * plan.alignment;
    }
  } catch (const c10::Error&) {  // there is no memory: Python says what for
    return false;
  }
  // Where one of dy and x is not read, kernels take the other in its place.
  if (places[kGradOut] == 0) {
    places[kGradOut] = places[kInput];
  } else if (places[kInput] == 0) {
    places[kInput] = places[kGradOut];
  }
  if (plan.driver == 0) {
    return launch_all(plan, device, places);
  }
  return reinterpret_cast<Driver>(plan.driver)(plan.program, team, threads, places) == 0;
}

}  // namespace normgrad

// Whether an operator on this thread waits for a plan.
extern "C" NORMGRAD_EXPORT int32_t normgrad_waits() {
  return normgrad::is_waiting;
}

// Gives this thread's waiting operator the plan that Python has just run.
extern "C" NORMGRAD_EXPORT void normgrad_hand_over(const int64_t* words, int64_t count) {
  normgrad::handed_over = normgrad::read_plan({words, count});
}

// Tells of a team of PyTorch's threads, and of how many Python has started on this thread.
extern "C" NORMGRAD_EXPORT void normgrad_use_team(int64_t team, int64_t started) {
  if (started > 1) {
    normgrad::team = team;
    normgrad::started_threads = std::max(normgrad::started_threads, started);
  }
}

// Tells of the number of threads that a call may use, or 0 for PyTorch's number.
extern "C" NORMGRAD_EXPORT void normgrad_use_threads(int64_t most) {
  normgrad::most_threads = most;
}

// The functions of a team, with the arguments of OpenMP's: one runs a function on so many threads,
// the others tell that function the number of its thread and how many there are.
extern "C" NORMGRAD_EXPORT void normgrad_parallel(
    void (*function)(int64_t), int64_t data, int64_t threads, int64_t) {
  at::parallel_for(0, threads, 1, [&](int64_t begin, int64_t end) {
    for (int64_t number = begin; number < end; ++number) {
      normgrad::thread_number = number;
      normgrad::thread_count = threads;
      function(data);
    }
  });
}

extern "C" NORMGRAD_EXPORT int32_t normgrad_thread_number() {
  return static_cast<int32_t>(normgrad::thread_number);
}

extern "C" NORMGRAD_EXPORT int32_t normgrad_thread_count() {
  return static_cast<int32_t>(normgrad::thread_count);
}
