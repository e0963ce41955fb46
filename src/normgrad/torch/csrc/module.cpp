// The Python module normgrad.torch._native: norms and operators on plain tensors of PyTorch.
//
// Its functions return NotImplemented where normgrad does not compute a call, so that PyTorch's own
// function or normgrad's Python does.

#include "norms.cpp"

#include <ATen/PythonTorchFunctionTLS.h>
#include <pybind11/stl.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/PyInterpreter.h>
#include <torch/csrc/autograd/utils/wrap_outputs.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/csrc/utils/tensor_memoryformats.h>

#include <deque>

namespace normgrad {
namespace {

// Python's function native_plans.plan, of the newest import of normgrad, and the class of PyTorch's mode
// for devices. They are never destroyed, since threads may outlive Python.
py::object &planner = *new py::object(), &device_mode = *new py::object();

bool read_integer(PyObject* value, Choice& choice) {
  int overflow = 0;
  if (!PyLong_CheckExact(value)) {
    return false;
  }
  choice.values.push_back(PyLong_AsLongLongAndOverflow(value, &overflow));
  return overflow == 0;
}

// Reads a tuple or list whose items are all integers, or in a tuple all booleans.
bool read_sequence(PyObject* value, Choice& choice) {
  if (!PyTuple_Check(value) && !PyList_Check(value)) {
    return false;
  }
  PyObject** items = PySequence_Fast_ITEMS(value);
  const auto size = PySequence_Fast_GET_SIZE(value);
  choice.kind = PyTuple_Check(value) && size > 0 && PyBool_Check(items[0]) ? Choice::Mask : Choice::Sizes;
  return std::all_of(items, items + size, [&](PyObject* item) {
    if (choice.kind == Choice::Sizes) {
      return read_integer(item, choice);
    }
    choice.values.push_back(item == Py_True);
    return PyBool_Check(item) != 0;
  });
}

// Reads an argument of any type that operators take; an integer as a number where one is wanted.
bool read_choice(PyObject* value, bool is_number, Choice& choice) {
  if (value == Py_None) {
    return true;
  }
  if (PyBool_Check(value)) {
    choice = {Choice::Bool, {value == Py_True}};
    return true;
  }
  if (PyFloat_CheckExact(value) || (is_number && PyLong_CheckExact(value))) {
    choice = {Choice::Float, {c10::bit_cast<int64_t>(PyFloat_AsDouble(value))}};
    return PyErr_Occurred() == nullptr || (PyErr_Clear(), false);  // an integer may be too large
  }
  choice.kind = Choice::Int;
  return PyLong_CheckExact(value) ? read_integer(value, choice) : read_sequence(value, choice);
}

// The argument that was read.
py::object as_python(const Choice& choice) {
  const auto& values = choice.values;
  switch (choice.kind) {
    case Choice::None:
      return py::none();
    case Choice::Bool:
      return py::bool_(values[0] != 0);
    case Choice::Int:
      return py::int_(values[0]);
    case Choice::Float:
      return py::float_(choice.number());
    case Choice::Sizes:
      return py::tuple(py::cast(std::vector<int64_t>(values.begin(), values.end())));
    default:
      return py::tuple(py::cast(std::vector<bool>(values.begin(), values.end())));
  }
}

// Reads a plan, as native_plans.py describes it.
std::shared_ptr<const Plan> read_plan(const py::dict& answer) {
  using Words = std::vector<int64_t>;
  using Results = std::vector<std::tuple<int64_t, int64_t, at::ScalarType>>;
  using Symbols = std::vector<std::tuple<int64_t, int64_t, int64_t>>;
  const auto number = [&](const char* name) { return answer[name].cast<int64_t>(); };
  auto plan = std::make_shared<Plan>();
  plan->is_supported = true;
  plan->driver = number("driver");
  plan->team = number("team");
  plan->launcher = number("launcher");
  plan->step_count = number("step_count");
  plan->alignment = number("alignment");
  plan->workspace_slot = number("workspace_slot");
  plan->slots = answer["slots"].cast<Words>();
  for (const auto& [slot, input, dtype] : answer["results"].cast<Results>()) {
    plan->results.push_back({slot, input, dtype});
  }
  plan->numbers = answer["numbers"].cast<std::vector<Words>>();
  auto program = std::make_shared<Plan::Program>();
  for (const auto& [row, column, instruction] : answer["symbols"].cast<Symbols>()) {
    program->symbols.push_back({row, column, instruction});
  }
  program->words = answer["program"].cast<Words>();
  if (!program->words.empty()) {
    plan->program = std::move(program);
  }
  return plan;
}

bool read_tensor(PyObject* value, Tensors& tensors) {
  if (value == Py_None) {
    tensors.emplace_back();
    return true;
  }
  if (!THPVariable_CheckExact(value)) {
    return false;
  }
  tensors.push_back(THPVariable_Unpack(value));
  return true;
}

// Whether a mode of functions on this thread does more than to say where tensors are made.
bool has_function_modes() {
  using Modes = at::impl::PythonTorchFunctionTLS;
  const int64_t count = at::impl::torch_function_mode_enabled() ? Modes::stack_len() : 0;
  for (int64_t index = 0; index < count; ++index) {
    const auto* mode = Modes::get_stack_at(index)->ptr(getPyInterpreter());
    if (reinterpret_cast<PyObject*>(Py_TYPE(mode)) != device_mode.ptr()) {
      return true;
    }
  }
  return false;
}

// Whether PyTorch or a mode of its has to see calls of this thread.
bool has_observers() {
  return is_observed() || has_function_modes();
}

template <Norm::Kind kind>
PyObject* compute_norm(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  const Norm& norm = norm_of(kind);
  Tensors tensors;
  Choices choices(norm.choices.size());
  if (count != static_cast<Py_ssize_t>(norm.tensors.size() + norm.choices.size()) || has_observers()) {
    Py_RETURN_NOTIMPLEMENTED;
  }
  for (size_t index : norm.tensors) {
    if (!read_tensor(arguments[index], tensors)) {
      Py_RETURN_NOTIMPLEMENTED;
    }
  }
  for (size_t index = 0; index < norm.choices.size(); ++index) {
    const auto wanted = norm.types[index];
    Choice& choice = choices[index];
    if (!read_choice(arguments[norm.choices[index]], wanted == Choice::Float, choice) ||
        (choice.kind != wanted && !(choice.kind == Choice::None && norm.kind == Norm::Rms))) {
      Py_RETURN_NOTIMPLEMENTED;
    }
  }
  std::optional<Tensor> output;
  if (tensors[0].defined()) {
    const py::gil_scoped_release no_gil;
    output = compute(norm, std::move(tensors), std::move(choices));
  }
  if (!output) {
    Py_RETURN_NOTIMPLEMENTED;
  }
  return THPVariable_Wrap(std::move(*output));
  END_HANDLE_TH_ERRORS
}

// The operators of functions, which live as long as the process; Python's lock guards the list.
std::deque<Operator>& functions() {
  static auto& all = *new std::deque<Operator>();
  return all;
}

// Reads a tuple of plain tensors of which autograd records nothing; false if there are others.
bool read_plain(PyObject* tuple, Tensors& tensors) {
  for (Py_ssize_t index = 0; index < PyTuple_GET_SIZE(tuple); ++index) {
    if (!read_tensor(PyTuple_GET_ITEM(tuple, index), tensors)) {
      return false;
    }
  }
  return !tensors.empty() && tensors[0].defined() && are_plain(tensors) &&
      !torch::autograd::compute_requires_grad(at::TensorList(tensors));
}

// A plan of Python's, and the signature of the tensors that it is for.
class Prepared {
 public:
  Prepared(const py::dict& plan, const py::tuple& tensors) : plan_(read_plan(plan)) {
    Tensors values;
    TORCH_CHECK_VALUE(read_plain(tensors.ptr(), values), "normgrad: tensors that are not plain");
    words_ = Signature(values, {}).words().vec();
  }

  py::object run(const py::tuple& tensors) const {
    Tensors values, results;
    bool is_done = !has_observers() && read_plain(tensors.ptr(), values);
    if (is_done) {
      const py::gil_scoped_release no_gil;
      is_done = Signature(values, {}).words() == at::IntArrayRef(words_) &&
          normgrad::run(*plan_, values, results);
    }
    return py::reinterpret_steal<py::object>(
        is_done ? torch::autograd::utils::wrap(at::TensorList(results))
                : Py_NewRef(Py_NotImplemented));
  }

 private:
  std::shared_ptr<const Plan> plan_;
  std::vector<int64_t> words_;
};

// Computes an operator, by its number: of a tuple of tensors and a tuple of other arguments.
PyObject* compute_operator(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  TORCH_CHECK_TYPE(count == 3, "normgrad: three arguments are needed");
  const size_t number = PyLong_AsSize_t(arguments[0]);
  if (has_observers() || number >= functions().size()) {
    PyErr_Clear();
    Py_RETURN_NOTIMPLEMENTED;
  }
  Tensors tensors, results;
  Choices choices(PyTuple_GET_SIZE(arguments[2]));
  bool is_done = read_plain(arguments[1], tensors);
  for (size_t index = 0; index < choices.size(); ++index) {
    PyObject* value = PyTuple_GET_ITEM(arguments[2], static_cast<Py_ssize_t>(index));
    if (!read_choice(value, false, choices[index])) {
      Py_RETURN_NOTIMPLEMENTED;
    }
  }
  if (is_done) {
    Operator& function = functions()[number];
    const py::gil_scoped_release no_gil;
    is_done = function.compute(tensors, choices, results);
  }
  if (!is_done) {
    Py_RETURN_NOTIMPLEMENTED;
  }
  return torch::autograd::utils::wrap(at::TensorList(results));
  END_HANDLE_TH_ERRORS
}

template <typename Function>
PyCFunction as_method(Function function) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
}

PyMethodDef methods[] = {
    {"batch_norm", as_method(compute_norm<Norm::Batch>), METH_FASTCALL, nullptr},
    {"group_norm", as_method(compute_norm<Norm::Group>), METH_FASTCALL, nullptr},
    {"layer_norm", as_method(compute_norm<Norm::Layer>), METH_FASTCALL, nullptr},
    {"rms_norm", as_method(compute_norm<Norm::Rms>), METH_FASTCALL, nullptr},
    {"compute", as_method(compute_operator), METH_FASTCALL, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

std::shared_ptr<const Plan> ask(
    const std::string& name, bool is_layer, c10::ArrayRef<Tensor> tensors,
    c10::ArrayRef<Choice> choices, const Sizes& open) {
  static const auto& none = *new std::shared_ptr<const Plan>(std::make_shared<Plan>());
  if (Py_IsInitialized() == 0) {
    return none;
  }
  const py::gil_scoped_acquire gil;
  try {
    py::tuple options(choices.size());
    for (size_t index = 0; index < choices.size(); ++index) {
      options[index] = as_python(choices[index]);
    }
    const auto values = py::reinterpret_steal<py::tuple>(torch::autograd::utils::wrap(tensors));
    py::object format = py::none();
    if (is_layer) {
      const auto suggested = tensors[0].suggest_memory_format();
      format = py::reinterpret_borrow<py::object>(torch::utils::getTHPMemoryFormat(suggested));
    }
    py::tuple axes(open.size());
    for (size_t index = 0; index < open.size(); ++index) {
      axes[index] = py::make_tuple(open[index].tensor, open[index].axis);
    }
    const py::object answer = planner(name, format, values, options, axes);
    return answer.is_none() ? none : read_plan(answer.cast<py::dict>());
  } catch (py::error_already_set& raised) {  // may be raised again in another thread
    raised.restore();
    python_error error;
    error.persist();
    throw error;
  }
}

}  // namespace normgrad

PYBIND11_MODULE(_native, module) {
  using namespace normgrad;
  if (PyModule_AddFunctions(module.ptr(), methods) != 0) {
    throw py::error_already_set();
  }
  module.attr("TEAM") = py::tuple(py::cast(team_functions()));
  module.def("set_threads", use_threads);
  py::class_<Prepared>(module, "Prepared")
      .def(py::init<const py::dict&, const py::tuple&>())
      .def("__call__", &Prepared::run);
  module.def("has_observers", has_observers);
  device_mode = py::module_::import("torch.utils._device").attr("DeviceContext");
  module.def("connect", [](py::object plan) { planner = std::move(plan); });
  module.def("add_operator", [](std::string name) {
    functions().emplace_back(std::move(name), false);
    return functions().size() - 1;
  });
}
