// PyTorch's operators of normgrad on plain tensors, and the autograd nodes of its norms.
//
// The schemas are Python's (schemas.py, layers.py). Each operator has a twin in Python, with
// "_python" after its name, that computes all other calls, raises all errors, and makes the plans.

#include "plans.cpp"

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/dynamo/compiled_autograd.h>
#include <torch/library.h>

#include <map>

namespace normgrad {
namespace {

using at::IValue;
using at::Tensor;
using c10::DispatchKeySet;
using c10::OperatorHandle;
using torch::autograd::SavedVariable;
using torch::autograd::variable_list;
using torch::jit::Stack;

OperatorHandle handle_of(const std::string& name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(("normgrad::" + name).c_str(), "");
}

Tensor tensor_of(const IValue& value) {
  return value.isTensor() ? value.toTensor() : Tensor();
}

bool are_plain(c10::ArrayRef<Tensor> tensors) {
  for (const Tensor& tensor : tensors) {
    if (!is_plain(tensor)) {
      return false;
    }
  }
  return true;
}

// The plans of an operator, and the twin that computes what they do not.
class Planned {
 public:
  explicit Planned(const std::string& name) : twin_(handle_of(name + "_python")) {}

  // Computes by a plan; false if there is none, or if Python has to compute.
  bool compute(const Signature& signature, c10::ArrayRef<Tensor> tensors, Tensors& results) const {
    const auto plan = store_.find(signature);
    if (plan && run(*plan, tensors, results)) {
      return true;
    }
    results.clear();  // their memory is free again while Python computes
    return false;
  }

  // Has the twin compute, without keeping the plan that it may make.
  void leave(Stack& stack) const {
    const Wait wait(false);
    twin_.callBoxed(stack);
  }

  // Has the twin compute, and keeps the plan if it is one for so many tensors.
  void learn(const Signature& signature, Stack& stack, size_t tensors) {
    const Wait wait(true);
    twin_.callBoxed(stack);
    auto plan = Wait::take();
    if (plan && plan->slots.size() == tensors) {
      store_.keep(signature, std::move(plan));
    }
  }

 private:
  OperatorHandle twin_;
  Store store_;
};

// The kernel of an operator of schemas.py, which records nothing for autograd.
class Operator : public Planned {
 public:
  explicit Operator(const std::string& name) : Planned(name) {
    for (const auto& argument : handle_of(name).schema().arguments()) {
      const auto& type = *argument.type();
      const auto* optional = type.castRaw<c10::OptionalType>();
      const auto& element = optional == nullptr ? type : *optional->getElementType();
      is_tensor_.push_back(element.kind() == c10::TypeKind::TensorType);
    }
  }

  void call(Stack& stack) {
    Signature signature;
    Tensors tensors, results;
    const auto arguments = torch::jit::last(stack, is_tensor_.size());
    bool is_known = is_unobserved();
    for (size_t index = 0; is_known && index < arguments.size(); ++index) {
      if (is_tensor_[index]) {
        tensors.push_back(tensor_of(arguments[index]));
        is_known = is_plain(tensors.back());
      }
      is_known = is_known && signature.add(arguments[index]);
    }
    if (!is_known) {
      return leave(stack);
    }
    if (!compute(signature, tensors, results)) {
      return learn(signature, stack, tensors.size());
    }
    torch::jit::drop(stack, is_tensor_.size());
    for (Tensor& result : results) {
      stack.emplace_back(std::move(result));
    }
  }

 private:
  std::vector<bool> is_tensor_;
};

// The operators, which live as long as the process.
Operator& operator_of(const std::string& name) {
  static auto& operators = *new std::map<std::string, Operator>();
  return operators.try_emplace(name, name).first->second;
}

struct OperatorKernel : c10::OperatorKernel {
  explicit OperatorKernel(Operator& target) : target(target) {}
  void operator()(const OperatorHandle&, DispatchKeySet, Stack* stack) {
    target.call(*stack);
  }
  Operator& target;
};

// What distinguishes a norm's layer: where its arguments are, and what its gradient takes.
struct Norm {
  std::string name, gradient, node;
  std::vector<size_t> tensors;  // input, weight, bias and running statistics, among the arguments
  std::vector<size_t> choices;  // the other arguments
  size_t saved;                 // the first of them that is saved besides input and weight
};

class NormNode : public torch::autograd::Node {
 public:
  NormNode(const Norm& norm, OperatorHandle gradient, Operator& computed)
      : norm_(norm), gradient_(std::move(gradient)), computed_(computed) {}

  std::string name() const override {
    return norm_.node;
  }

  void save(c10::ArrayRef<Tensor> tensors, std::vector<Tensor> statistics, std::vector<IValue> choices) {
    statistics_ = std::move(statistics);
    choices_ = std::move(choices);
    const Tensor &input = tensors[0], &weight = tensors[1];
    if (norm_.name == "rms_norm" && !input.requires_grad()) {
      // PyTorch's RMS norm saves neither of them here, so that both may change.
      saved_.emplace_back(input.clone(), false);
      saved_.emplace_back(weight.defined() ? weight.variable_data() : weight, false);
      return;
    }
    saved_.emplace_back(input, false);
    saved_.emplace_back(weight, false);
    // No gradient depends on these, but PyTorch's layers save them, so that they must not change.
    for (size_t index = norm_.saved; index < tensors.size(); ++index) {
      saved_.emplace_back(tensors[index], false);
    }
  }

  void release_variables() override {
    const std::lock_guard lock(mutex_);
    for (SavedVariable& each : saved_) {
      each.reset_data();
    }
    statistics_.clear();
  }

  void compiled_args(torch::dynamo::autograd::CompiledNodeArgs& args) const override {
    args.collect(norm_.node);
    args.collect(saved_, false);
    args.collect(statistics_);
    for (const IValue& choice : choices_) {
      args.collect(choice);
    }
  }

  variable_list apply_with_saved(
      const variable_list& inputs, torch::dynamo::autograd::SwapSavedVariables& saved) override {
    saved.before(saved_);
    saved.before(statistics_);
    auto results = apply(variable_list(inputs));
    saved.after(saved_);
    saved.after(statistics_);
    return results;
  }

 protected:
  variable_list apply(variable_list&& inputs) override {
    const std::lock_guard lock(mutex_);
    variable_list gradients(num_outputs());
    if (!inputs[0].defined()) {
      return gradients;
    }
    Tensors tensors{std::move(inputs[0])};
    for (const SavedVariable& each : saved_) {
      tensors.push_back(each.unpack());  // raises an error after a backward pass that released it
    }
    tensors.resize(3);  // what remains are dy, x and the weight
    Stack stack = arguments_of(tensors);
    for (const Tensor& each : statistics_) {
      tensors.push_back(each);
    }
    if (!at::GradMode::is_enabled() && is_unobserved() && are_plain(tensors)) {
      computed_.call(stack);
    } else {
      gradient_.callBoxed(stack);
    }
    for (size_t index = 0; index < gradients.size(); ++index) {
      if (task_should_compute_output(index)) {
        gradients[index] = std::move(stack[index]).toTensor();
      }
    }
    return gradients;
  }

 private:
  // The arguments of the gradient's operator.
  Stack arguments_of(c10::ArrayRef<Tensor> tensors) {
    const Tensor &grad_out = tensors[0], &input = tensors[1];
    const IValue weight = tensors[2].defined() ? IValue(tensors[2]) : IValue();
    c10::List<bool> mask;
    for (size_t index = 0; index < num_outputs(); ++index) {
      mask.push_back(task_should_compute_output(index));
    }
    Stack stack{grad_out, input};
    if (norm_.name == "batch_norm") {
      stack.push_back(weight);
      const bool training = choices_[0].toBool();
      for (bool running : {true, false}) {
        for (const Tensor& each : statistics_) {
          stack.push_back(running != training ? IValue(each) : IValue());
        }
      }
      stack.push_back(training);
      stack.push_back(choices_[2]);  // eps
    } else if (norm_.name == "group_norm") {
      stack.insert(stack.end(), {statistics_[0], statistics_[1], weight});
      c10::SymInt positions = 1;
      for (const c10::SymInt& size : input.sym_sizes().slice(2)) {
        positions *= size;
      }
      stack.insert(stack.end(), {input.sym_size(0), input.sym_size(1), positions, choices_[0]});
    } else {
      stack.push_back(choices_[0]);  // normalized_shape
      stack.insert(stack.end(), statistics_.begin(), statistics_.end());
      stack.push_back(weight);
      if (norm_.name == "layer_norm") {
        stack.emplace_back();  // the gradients do not depend on the bias
      }
    }
    stack.emplace_back(std::move(mask));
    return stack;
  }

  const Norm& norm_;
  OperatorHandle gradient_;
  Operator& computed_;
  std::vector<SavedVariable> saved_;
  std::vector<Tensor> statistics_;
  std::vector<IValue> choices_;
};

// The kernel of a norm's layer, which updates running statistics in place.
class LayerKernel : public c10::OperatorKernel {
 public:
  explicit LayerKernel(const Norm& norm)
      : norm_(norm),
        planned_(*new Planned(norm.name)),
        gradient_(handle_of(norm.gradient)),
        computed_(operator_of(norm.gradient)) {}

  void operator()(const OperatorHandle&, DispatchKeySet, Stack* stack) {
    Signature signature;
    Tensors tensors, results;
    const auto count = norm_.tensors.size() + norm_.choices.size();
    const auto arguments = torch::jit::last(*stack, count);
    for (size_t index : norm_.tensors) {
      tensors.push_back(tensor_of(arguments[index]));
    }
    if (!is_unobserved() || !are_plain(tensors)) {
      return planned_.leave(*stack);
    }
    bool is_known = true;
    for (const Tensor& tensor : tensors) {
      signature.add(tensor);
    }
    for (size_t index : norm_.choices) {
      is_known &= signature.add(arguments[index]);
    }
    const bool records = at::GradMode::is_enabled();
    bool needs_node = false;
    for (size_t index = 0; index < tensors.size(); ++index) {
      const bool wants = records && tensors[index].defined() && tensors[index].requires_grad();
      needs_node |= wants;
      is_known &= !(wants && index >= 3);  // kernels have no derivatives by running statistics
    }
    if (!is_known) {
      return planned_.leave(*stack);
    }
    if (!planned_.compute(signature, tensors, results)) {
      return planned_.learn(signature, *stack, tensors.size());
    }
    if (needs_node) {
      record(arguments, tensors, results);
    }
    torch::jit::drop(*stack, count);
    stack->emplace_back(std::move(results[0]));
  }

 private:
  void record(c10::ArrayRef<IValue> arguments, const Tensors& tensors, const Tensors& results) const {
    auto node = c10::make_intrusive<NormNode>(norm_, gradient_, computed_);
    torch::autograd::edge_list edges;
    for (size_t index = 0; index < std::min<size_t>(tensors.size(), 3); ++index) {
      const bool wants = tensors[index].defined() && tensors[index].requires_grad();
      edges.push_back(wants ? torch::autograd::impl::gradient_edge(tensors[index]) : torch::autograd::Edge());
    }
    node->set_next_edges(std::move(edges));
    std::vector<IValue> choices;
    for (size_t index : norm_.choices) {
      choices.push_back(arguments[index]);
    }
    std::vector<Tensor> statistics;
    for (size_t index = 1; index < results.size() && index < 3; ++index) {
      if (results[index].defined()) {
        statistics.push_back(results[index]);
      }
    }
    if (statistics.empty()) {  // in evaluation; a later batch may update the running statistics
      const at::AutoDispatchBelowADInplaceOrView guard;
      statistics = {tensors[3].clone(), tensors[4].clone()};
    }
    node->save(tensors, std::move(statistics), std::move(choices));
    torch::autograd::set_history(results[0], node);
  }

  const Norm& norm_;
  Planned& planned_;
  OperatorHandle gradient_;
  Operator& computed_;
};

const std::vector<Norm>& norms() {
  static const std::vector<Norm> all{
      {"batch_norm", "native_batch_norm_backward", "BatchNormBackward", {0, 3, 4, 1, 2}, {5, 6, 7}, 3},
      {"group_norm", "native_group_norm_backward", "GroupNormBackward", {0, 2, 3}, {1, 4}, 3},
      {"layer_norm", "native_layer_norm_backward", "LayerNormBackward", {0, 2, 3}, {1, 4}, 2},
      {"rms_norm", "_fused_rms_norm_backward", "RmsNormBackward", {0, 2}, {1, 3}, 2},
  };
  return all;
}

torch::Library& library() {
  static auto& made = *new torch::Library(torch::Library::IMPL, "normgrad", std::nullopt, __FILE__, __LINE__);
  return made;
}

}  // namespace
}  // namespace normgrad

// Registers the kernels of an operator of schemas.py, whose twin exists already.
extern "C" NORMGRAD_EXPORT void normgrad_implement(const char* name) {
  using namespace normgrad;
  for (auto key : {c10::DispatchKey::CPU, c10::DispatchKey::CUDA}) {
    library().impl(
        name,
        torch::dispatch(
            key,
            torch::CppFunction::makeFromBoxedFunctor(
                std::make_unique<OperatorKernel>(operator_of(name)))));
  }
}

// Registers the kernels of the norms' layers, whose twins exist already.
extern "C" NORMGRAD_EXPORT void normgrad_implement_layers() {
  using namespace normgrad;
  for (const Norm& norm : norms()) {
    for (auto key :
         {c10::DispatchKey::CPU, c10::DispatchKey::AutogradCPU, c10::DispatchKey::CUDA,
          c10::DispatchKey::AutogradCUDA}) {
      library().impl(
          norm.name.c_str(),
          torch::dispatch(
              key,
              torch::CppFunction::makeFromBoxedFunctor(std::make_unique<LayerKernel>(norm))));
    }
  }
}
