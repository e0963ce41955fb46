// The norms of PyTorch's layers: their forward passes on plain tensors, and their autograd nodes.
//
// Wherever something has to see a backward pass (a mode, a transform, a compiler, a derivative of
// the gradients), the node computes the derivative of PyTorch's own function.

#include "plans.cpp"

#include <ATen/Functions.h>
#include <ATen/autocast_mode.h>
#include <ATen/record_function.h>
#include <pybind11/pybind11.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/dynamo/compiled_autograd.h>

namespace normgrad {
namespace {

using at::Tensor;
using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

// What distinguishes a norm: where its arguments are, and what its node saves.
struct Norm {
  enum Kind { Batch, Group, Layer, Rms };
  Kind kind;
  const char *name, *node;
  std::vector<size_t> tensors;  // input, weight, bias and running statistics, among the arguments
  std::vector<size_t> choices;  // the other arguments
  std::vector<Choice::Kind> types;  // of the choices; RMS norm's last may be None
  size_t saved;                 // the first of the tensors that is saved besides input and weight
  Operator &forward, &backward;
};

Operator& operator_of(const char* name) {
  return *new Operator(name, true);  // it lives as long as the process
}

const Norm& norm_of(Norm::Kind kind) {
  static const auto& all = *new std::vector<Norm>{
      {Norm::Batch, "normgrad::batch_norm", "NormgradBatchNormBackward", {0, 3, 4, 1, 2}, {5, 6, 7},
       {Choice::Bool, Choice::Float, Choice::Float}, 3, operator_of("batch_norm"), operator_of("batch_norm_backward")},
      {Norm::Group, "normgrad::group_norm", "NormgradGroupNormBackward", {0, 2, 3}, {1, 4},
       {Choice::Int, Choice::Float}, 3,
       operator_of("group_norm"), operator_of("group_norm_backward")},
      {Norm::Layer, "normgrad::layer_norm", "NormgradLayerNormBackward", {0, 2, 3}, {1, 4},
       {Choice::Sizes, Choice::Float}, 2,
       operator_of("layer_norm"), operator_of("layer_norm_backward")},
      {Norm::Rms, "normgrad::rms_norm", "NormgradRmsNormBackward", {0, 2}, {1, 3},
       {Choice::Sizes, Choice::Float}, 2,
       operator_of("rms_norm"), operator_of("rms_norm_backward")},
  };
  return all[kind];
}

bool are_plain(c10::ArrayRef<Tensor> tensors) {
  return std::all_of(tensors.begin(), tensors.end(), is_plain);
}

// Those of a norm's tensors that have gradients: input, weight and bias; running statistics do not.
at::TensorList differentiable(const Tensors& tensors) {
  return at::TensorList(tensors).slice(0, std::min<size_t>(tensors.size(), 3));
}

// PyTorch's function, of input, weight, bias and running statistics.
Tensor by_pytorch(Norm::Kind kind, const Tensors& values, const Choices& choices) {
  const bool cudnn = at::globalContext().userEnabledCuDNN();
  const auto optional = [&](size_t index) {
    return values[index].defined() ? std::optional<Tensor>(values[index]) : std::nullopt;
  };
  const Tensor& input = values[0];
  const auto& first = choices[0].values;
  switch (kind) {
    case Norm::Batch:
      return at::batch_norm(
          input, optional(1), optional(2), optional(3), optional(4), first[0] != 0,
          choices[1].number(), choices[2].number(), cudnn);
    case Norm::Group:
      return at::group_norm(
          input, first[0], optional(1), optional(2), choices[1].number(), cudnn);
    case Norm::Layer:
      return at::layer_norm(input, first, optional(1), optional(2), choices[1].number(), cudnn);
    default: {
      const bool has_eps = choices[1].kind == Choice::Float;
      const auto eps = has_eps ? std::optional<double>(choices[1].number()) : std::nullopt;
      return at::rms_norm(input, first, optional(1), eps);
    }
  }
}

// What a norm's gradients depend on besides tensors.
struct Context {
  const Norm& norm;
  Choices choices;
  std::optional<at::TensorOptions> bias;
};

// The functions below take the values that a node saves: input, weight and statistics. These are the
// batch's mean and 1/std, of RMS norm 1/std alone, and in evaluation the running mean and variance.

// Computes the gradients of a mask by normgrad's kernels; nothing where they cannot.
std::optional<variable_list> by_kernels(
    const Context& context, const Choice& mask, const Tensor& grad_out, const variable_list& saved) {
  const Tensor none, &input = saved[0], &weight = saved[1], &invstd = saved.back();
  // A float64 mean is not exact enough for float64 data: the CPU's kernels find it anew.
  const bool is_precise = input.scalar_type() == at::kDouble && input.is_cpu();
  const bool in_training = context.norm.kind != Norm::Batch || context.choices[0].values[0] != 0;
  const Tensor& mean = is_precise && in_training ? none : saved[2];
  Tensors tensors, results;
  Choices choices{context.choices[0]};
  if (context.norm.kind == Norm::Batch) {
    tensors = in_training
        ? Tensors{grad_out, input, weight, none, none, mean, invstd}
        : Tensors{grad_out, input, weight, mean, invstd, none, none};
    choices.push_back(context.choices[2]);
  } else if (context.norm.kind == Norm::Rms) {
    tensors = {grad_out, input, invstd, weight};
  } else {
    tensors = {grad_out, input, mean, invstd, weight};
  }
  choices.push_back(mask);
  if (!are_plain(tensors) || !context.norm.backward.compute(tensors, choices, results)) {
    return std::nullopt;
  }
  return variable_list(results.begin(), results.end());
}

// Computes the gradients of a mask as the derivative of PyTorch's function, which can be
// differentiated again.
variable_list by_derivative(
    const Context& context, const Choice& mask, const Tensor& grad_out, const variable_list& saved,
    bool again) {
  const at::AutoGradMode records(true);
  const auto kind = context.norm.kind;
  const auto& first = context.choices[0].values;
  Tensors values{saved[0], saved[1], Tensor(), Tensor(), Tensor()};
  if (context.bias) {  // the gradients do not depend on its values
    const auto sizes = kind == Norm::Layer ? at::IntArrayRef(first) : saved[0].sizes().slice(1, 1);
    values[2] = at::zeros(sizes, *context.bias).set_requires_grad(true);
  }
  if (kind == Norm::Batch && first[0] == 0) {
    values[3] = saved[2];
    values[4] = saved[3];
  }
  variable_list wanted, gradients(mask.values.size());
  for (size_t index = 0; index < gradients.size(); ++index) {
    if (mask.values[index] != 0) {
      // An alias, since the tensor's own hooks run in the caller's backward pass. A tensor that
      // compiled autograd has from a hook requires no gradient.
      Tensor& value = values[index];
      value = again ? at::alias(value) : value.detach();
      if (!value.requires_grad()) {
        value.set_requires_grad(true);
      }
      wanted.push_back(value);
    }
  }
  const Tensor output = by_pytorch(kind, values, context.choices);
  auto found = torch::autograd::grad({output}, wanted, {grad_out}, again, again, true);
  for (size_t index = gradients.size(); index-- > 0;) {
    if (mask.values[index] != 0) {
      gradients[index] = std::move(found.back());
      found.pop_back();
    }
  }
  return gradients;
}

variable_list gradients_of(
    const Context& context, const Choice& mask, Tensor grad_out, const variable_list& saved) {
  if (!grad_out.defined()) {
    return variable_list(mask.values.size());
  }
  if (grad_out._is_zerotensor()) {  // it has no memory, which PyTorch's group norm reads
    grad_out = grad_out.clone();
  }
  const bool again = at::GradMode::is_enabled() ||
      torch::autograd::isFwGradDefinedTensorList(at::TensorList({grad_out, saved[0], saved[1]}));
  if (!again && !is_observed()) {
    if (auto gradients = by_kernels(context, mask, grad_out, saved)) {
      return *std::move(gradients);
    }
  }
  return by_derivative(context, mask, grad_out, saved, again);
}

class NormNode : public torch::autograd::Node {
 public:
  // The statistics are a layer's own, which nobody else can change.
  NormNode(const Norm& norm, c10::ArrayRef<Tensor> tensors, variable_list statistics, Choices choices)
      : context_{norm, std::move(choices)}, statistics_(std::move(statistics)) {
    const Tensor &input = tensors[0], &weight = tensors[1];
    // PyTorch's RMS norm saves neither of them if the input needs no gradient, so that both may
    // change; and of 16 bits a copy in float32.
    const bool may_change = norm.kind == Norm::Rms && !input.requires_grad();
    const bool is_narrow = norm.kind == Norm::Rms && input.is_cpu() && input.itemsize() == 2;
    saved_.emplace_back(may_change || is_narrow ? input.clone() : input, false);
    saved_.emplace_back(may_change && weight.defined() ? weight.variable_data() : weight, false);
    // No gradient depends on these, but PyTorch's layers save them, so that they must not change.
    for (size_t index = norm.saved; index < tensors.size(); ++index) {
      saved_.emplace_back(tensors[index], false);
    }
    if (tensors.size() > 2 && tensors[2].defined()) {
      context_.bias = tensors[2].options();
    }
  }

  std::string name() const override {
    return context_.norm.node;
  }

  void release_variables() override {
    const std::lock_guard lock(mutex_);
    for (SavedVariable& each : saved_) {
      each.reset_data();
    }
    statistics_.clear();
  }

  void compiled_args(torch::dynamo::autograd::CompiledNodeArgs& args) const override {
    const Signature signature({}, context_.choices);
    args.collect(name());
    args.collect(saved_, false);
    args.collect(statistics_);
    args.collect(signature.words());
    args.collect(context_.bias);
  }

  // Has compiled autograd trace this norm's gradients: its compiler sees PyTorch's operators.
  variable_list apply_with_saved(
      const variable_list& inputs, torch::dynamo::autograd::SwapSavedVariables& swapped) override {
    using namespace torch::dynamo::autograd;
    swapped.before(saved_);
    swapped.before(statistics_);
    PackedArgs packed;
    packed.pack(unpack());
    const auto function = [context = context_, mask = mask()](
                              const variable_list& inputs, const std::vector<c10::IValue>& args) {
      const pybind11::gil_scoped_release no_gil;  // Python calls this; derivatives run the engine
      return gradients_of(context, mask, inputs[0], PackedArgs(args).unpack<variable_list>());
    };
    const auto& compiler = getPyCompilerInterface();
    const auto bound = compiler->bind_function(
        swapped.get_py_compiler(), name(), function, {packed.vec()[0].type()}, true, true);
    auto gradients = compiler->call_function(
        swapped.get_py_compiler(), "apply_functional", bound, inputs, packed.vec(),
        IValuePacker<std::vector<std::optional<InputMetadata>>>::pack(
            get_input_metadata(next_edges())));
    swapped.after(saved_);
    swapped.after(statistics_);
    return gradients;
  }

 protected:
  variable_list apply(variable_list&& inputs) override {
    const std::lock_guard lock(mutex_);
    return gradients_of(context_, mask(), std::move(inputs[0]), unpack());
  }

 private:
  // Input, weight and statistics; an error after a backward pass that released them.
  variable_list unpack() const {
    variable_list values;
    for (const SavedVariable& each : saved_) {
      values.push_back(each.unpack());
    }
    values.resize(2);
    values.insert(values.end(), statistics_.begin(), statistics_.end());
    return values;
  }

  Choice mask() const {
    Choice mask{Choice::Mask, {}};
    for (size_t index = 0; index < num_outputs(); ++index) {
      mask.values.push_back(task_should_compute_output(index));
    }
    return mask;
  }

  Context context_;
  std::vector<SavedVariable> saved_;
  variable_list statistics_;
};

// Attaches a node to a norm's output, if a gradient of it is asked for.
void record(const Norm& norm, const Tensors& tensors, Choices choices, const Tensors& results) {
  const auto end = results.begin() + std::min<ptrdiff_t>(results.size(), 3);
  variable_list statistics(results.begin() + 1, end);
  if (!statistics[0].defined()) {  // in evaluation; a later batch may update the running statistics
    const at::AutoDispatchBelowADInplaceOrView guard;
    statistics = {tensors[3].clone(), tensors[4].clone()};
  }
  auto node = c10::make_intrusive<NormNode>(norm, tensors, std::move(statistics), std::move(choices));
  node->set_next_edges(torch::autograd::collect_next_edges(differentiable(tensors)));
  torch::autograd::set_history(results[0], node);
}

// Computes a norm of plain tensors in the norm's order; nothing where PyTorch has to.
std::optional<Tensor> compute(const Norm& norm, Tensors tensors, Choices choices) {
  if (tensors[0].is_cuda() && norm.kind != Norm::Batch && at::autocast::is_autocast_enabled(at::kCUDA)) {
    for (Tensor& tensor : tensors) {  // CUDA's autocast computes these norms in float32
      if (tensor.defined() && tensor.scalar_type() != at::kDouble) {
        tensor = tensor.to(at::kFloat);
      }
    }
  }
  using torch::autograd::compute_requires_grad;
  const auto leading = differentiable(tensors);
  // PyTorch says that there is no derivative by running statistics.
  if (!are_plain(tensors) ||
      compute_requires_grad(at::TensorList(tensors).slice(leading.size()))) {
    return std::nullopt;
  }
  RECORD_FUNCTION(norm.name, c10::ArrayRef<const c10::IValue>());
  Tensors results;
  if (!norm.forward.compute(tensors, choices, results)) {
    return std::nullopt;
  }
  if (compute_requires_grad(leading)) {
    record(norm, tensors, std::move(choices), results);
  }
  return std::move(results[0]);
}

}  // namespace
}  // namespace normgrad
