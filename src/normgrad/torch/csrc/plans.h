// Plans that Python hands over: how they are found by a call's signature, and how they are run.

#pragma once

#include <ATen/Functions.h>
#include <ATen/core/stack.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

// What Python calls.
#define NORMGRAD_EXPORT __attribute__((visibility("default")))

namespace normgrad {

using Words = std::vector<int64_t>;
using Tensors = c10::SmallVector<at::Tensor, 8>;

// What a plan says of one of its results.
struct Result {
  enum Kind : int64_t { Absent, New, InPlace };
  Kind kind;
  int64_t slot;   // its index among the addresses, or -1 if the plan does not write it
  int64_t input;  // the tensor that is overwritten, if the kind is InPlace
  at::ScalarType dtype;
  std::vector<int64_t> sizes, strides;
  int64_t bytes;
};

// A plan: a program of normgrad's CPU backend, or the launches of a GPU's kernels; and the tensors
// that it takes.
struct Plan {
  int64_t driver;      // the address of the CPU backend's driver, or 0
  int64_t program[3];  // the addresses of block and steps, and the number of steps
  bool parallel;
  int64_t launch, stream_of;  // CUDA's function for launches, and PyTorch's for the current stream
  int64_t aligned;            // the lowest bits of dy, x and dx for which kernels are compiled
  std::vector<int64_t> block, steps;  // of launches only steps, of kLaunchFields words each
  int64_t workspace, alignment, workspace_slot;
  std::vector<int64_t> slots;  // each tensor's index among the addresses, or -1
  std::vector<Result> results;
};

// What a plan depends on: the specs of a call's tensors, and its other arguments.
class Signature {
 public:
  Signature() {
    words_.reserve(96);
  }
  void add(const at::Tensor& tensor);
  // Adds a number, a list or a tensor; false for anything else, such as a symbolic size.
  bool add(const c10::IValue& value);

  const Words& words() const {
    return words_;
  }

 private:
  Words words_;
};

// The plans of one operator, by signature. All methods may be called from any thread.
class Store {
 public:
  Store();
  ~Store();
  std::shared_ptr<const Plan> find(const Signature& signature) const;
  void keep(const Signature& signature, std::shared_ptr<const Plan> plan);

 private:
  struct Map;
  std::unique_ptr<Map> map_;
};

// For as long as it lives, whether an operator on this thread waits for the plan that Python makes.
class Wait {
 public:
  explicit Wait(bool waits);
  ~Wait();
  Wait(const Wait&) = delete;
  Wait& operator=(const Wait&) = delete;

  // The plan that Python has handed over meanwhile, if any.
  static std::shared_ptr<const Plan> take();

 private:
  bool before_;
};

// Whether a tensor's memory can be read and written by its address: a dense tensor of PyTorch's own
// on the CPU or a GPU, not wrapped by a mode or transform, without a tangent, and with a storage
// that holds all elements.
bool is_plain(const at::Tensor& tensor);

// Whether no mode, transform or tracer on this thread has to see operators.
bool is_unobserved();

// Runs a plan on plain tensors, and makes its results. Returns false, with nothing written, if
// Python has to do it: where it raises an error, starts threads or has a larger stack.
bool run(const Plan& plan, c10::ArrayRef<at::Tensor> tensors, Tensors& results);

}  // namespace normgrad
