"""The infiniop dialect: InfiniCore's descriptors and workspaces, with its status codes.

See docs/infiniop.md.
"""

from __future__ import annotations

import operator
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...declarations.options import Options
from ...operators.batch_norm import BATCH_NORM_BACKWARD
from ...plans.cache import Cache
from ...plans.plan import Plan
from ...support.values import describe, represent
from ...tensors import frameworks
from ...tensors.specs import TensorSpec
from ...tensors.strides import contiguous_strides, extent, used_strides
from .. import rules
from ..errors import DialectError
from .enumerations import infiniDevice_t as infiniDevice_t
from .enumerations import infiniDtype_t as infiniDtype_t
from .enumerations import infiniStatus_t as infiniStatus_t

# Each enumeration's members are also names of this module, as in C.
(
    INFINI_STATUS_SUCCESS, INFINI_STATUS_INTERNAL_ERROR, INFINI_STATUS_NOT_IMPLEMENTED,
    INFINI_STATUS_BAD_PARAM, INFINI_STATUS_NULL_POINTER, INFINI_STATUS_DEVICE_TYPE_NOT_SUPPORTED,
    INFINI_STATUS_DEVICE_NOT_FOUND, INFINI_STATUS_DEVICE_NOT_INITIALIZED,
    INFINI_STATUS_DEVICE_ARCHITECTURE_NOT_SUPPORTED, INFINI_STATUS_BAD_TENSOR_DTYPE,
    INFINI_STATUS_BAD_TENSOR_SHAPE, INFINI_STATUS_BAD_TENSOR_STRIDES,
    INFINI_STATUS_INSUFFICIENT_WORKSPACE,
) = infiniStatus_t  # fmt: skip
(
    INFINI_DEVICE_CPU, INFINI_DEVICE_NVIDIA, INFINI_DEVICE_CAMBRICON, INFINI_DEVICE_ASCEND,
    INFINI_DEVICE_METAX, INFINI_DEVICE_MOORE, INFINI_DEVICE_ILUVATAR, INFINI_DEVICE_KUNLUN,
    INFINI_DEVICE_HYGON, INFINI_DEVICE_QY, INFINI_DEVICE_ALI,
) = infiniDevice_t  # fmt: skip
(
    INFINI_DTYPE_INVALID, INFINI_DTYPE_BYTE, INFINI_DTYPE_BOOL, INFINI_DTYPE_I8, INFINI_DTYPE_I16,
    INFINI_DTYPE_I32, INFINI_DTYPE_I64, INFINI_DTYPE_U8, INFINI_DTYPE_U16, INFINI_DTYPE_U32,
    INFINI_DTYPE_U64, INFINI_DTYPE_F8, INFINI_DTYPE_F16, INFINI_DTYPE_F32, INFINI_DTYPE_F64,
    INFINI_DTYPE_C16, INFINI_DTYPE_C32, INFINI_DTYPE_C64, INFINI_DTYPE_C128, INFINI_DTYPE_BF16,
) = infiniDtype_t  # fmt: skip


class InfiniError(DialectError):
    """The error of a failed call: its ``status``, ``function``, and ``parameter`` or None."""

    wrong_argument = INFINI_STATUS_BAD_PARAM
    status: infiniStatus_t


# The contract

#: The operator's tensors, in the order of the C function's arguments.
OUTPUTS = ("grad_input", "grad_weight", "grad_bias")
INPUTS = ("input", "grad_output", "weight", "running_mean", "running_var")

#: Normgrad's operator; InfiniCore's running_var holds the batch's variances.
_OPERATOR = BATCH_NORM_BACKWARD.of_variance("save_invstd")
#: InfiniCore's names of the inputs, by normgrad's.
THEIR_NAMES = {
    "grad_out": "grad_output",
    "input": "input",
    "weight": "weight",
    "save_mean": "running_mean",
    "save_invstd": "running_var",
}
#: InfiniCore's names of the plan's inputs and outputs, in the plan's order; "" where absent.
ORDER = (*(THEIR_NAMES.get(name, "") for name in _OPERATOR.names), *OUTPUTS)

_CREATE = "infiniopCreateBatchNormBackwardDescriptor"
_RUN = "infiniopBatchNormBackward"

_NAMES = {
    INFINI_DTYPE_F16: "float16",
    INFINI_DTYPE_F32: "float32",
    INFINI_DTYPE_F64: "float64",
    INFINI_DTYPE_BF16: "bfloat16",
}

_AS_INPUT = (rules.dtype_of("input"),)


#: The rules for the rank, shape and strides of data and of vectors.
_DATA = rules.rank_in(3, 3), rules.shape_of("input"), rules.CONTIGUOUS
_VECTOR = rules.rank_in(1, 1), rules.length("C"), rules.POSITIVE_STRIDES


def _row(
    name: str, form: tuple[rules.Rule, rules.Rule, rules.Rule], is_output: bool = False
) -> rules.TensorRow:
    return rules.TensorRow(name, rules.ALWAYS, _AS_INPUT, (), *form, is_output)


CONTRACT = rules.Contract(
    _CREATE,
    (
        _row("grad_input", _DATA, True),
        _row("grad_weight", _VECTOR, True),
        _row("grad_bias", _VECTOR, True),
        rules.TensorRow(
            "input",
            rules.ALWAYS,
            (rules.dtype_in("float16", "float32", "bfloat16"),),
            rank=rules.rank_in(3, 3),
            strides=rules.CONTIGUOUS,
        ),
        _row("grad_output", _DATA),
        _row("weight", _VECTOR),
        _row("running_mean", _VECTOR),
        _row("running_var", _VECTOR),
    ),
    lambda call: {"C": call.arguments["input"].dims[1]},
    ("input",),
    ((rules.Aspect.DTYPE,), (rules.Aspect.SHAPE,), (rules.Aspect.STRIDES,)),
)

#: The one product of this dialect, since InfiniCore does not distinguish products.
ANY_PRODUCT = rules.Product("", (), frozenset({_CREATE}))

#: The statuses of broken rules, by what they are about.
STATUSES = {
    **dict.fromkeys(rules.EVERY, INFINI_STATUS_BAD_PARAM),
    rules.Aspect.DTYPE: INFINI_STATUS_BAD_TENSOR_DTYPE,
    rules.Aspect.SHAPE: INFINI_STATUS_BAD_TENSOR_SHAPE,
    rules.Aspect.STRIDES: INFINI_STATUS_BAD_TENSOR_STRIDES,
}


# Devices and handles


def infinirtInit() -> None:
    """Do nothing; it may be called any number of times."""


def infinirtGetDeviceCount(device: int) -> int:
    """The number of devices of a kind; there is one CPU and nothing else."""
    kind = InfiniError.member("infinirtGetDeviceCount", "device", infiniDevice_t, device)
    return int(kind is INFINI_DEVICE_CPU)


def infinirtSetDevice(device: int, device_id: int = 0) -> None:
    """Choose the device of this thread's next handles.

    Raises:
        InfiniError: DEVICE_TYPE_NOT_SUPPORTED for any kind but the CPU, DEVICE_NOT_FOUND for a
            device number other than 0, BAD_PARAM for an unknown kind of device.
    """
    name = "infinirtSetDevice"
    _supported(name, InfiniError.member(name, "device", infiniDevice_t, device))
    if _integer(name, "device_id", device_id) != 0:
        status = INFINI_STATUS_DEVICE_NOT_FOUND
        raise InfiniError.of(name, "device_id", f"{represent(device_id)}; allowed: 0", status)


def infinirtGetDevice() -> tuple[infiniDevice_t, int]:
    """The kind and the number of this thread's device."""
    return INFINI_DEVICE_CPU, 0


def _supported(function: str, kind: infiniDevice_t) -> None:
    if kind is not INFINI_DEVICE_CPU:
        status = INFINI_STATUS_DEVICE_TYPE_NOT_SUPPORTED
        raise InfiniError.of(function, "device", f"{kind.name}; allowed: INFINI_DEVICE_CPU", status)


@dataclass(eq=False, repr=False, slots=True)
class _Handle:
    """The base of objects that the program can destroy once."""

    alive: bool = field(default=True, init=False)


@dataclass(eq=False, repr=False, slots=True)
class infiniopHandle_t(_Handle):
    """A handle to a device, on which operators are made."""

    device: infiniDevice_t


@dataclass(eq=False, repr=False, slots=True)
class infiniopTensorDescriptor_t(_Handle):
    """The description of a tensor: shape, strides in elements, dtype."""

    dims: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: infiniDtype_t

    @property
    def dtype_name(self) -> str:
        """The dtype's name in contracts."""
        return _NAMES.get(self.dtype) or self.dtype.name.removeprefix("INFINI_DTYPE_")

    @property
    def format_name(self) -> str:
        """The format's name, which is empty since InfiniCore has no formats."""
        return ""


@dataclass(eq=False, repr=False, slots=True)
class infiniopBatchNormBackwardDescriptor_t(_Handle):
    """The operator, prepared for tensors of the given descriptions."""

    plan: Plan
    specs: Mapping[str, TensorSpec]


def _need(function: str, name: str, value: Any, kind: type[_Handle]) -> Any:
    if value is None:
        raise InfiniError.of(function, name, f"null; allowed: an {kind.__name__}")
    if not isinstance(value, kind):
        raise InfiniError.of(function, name, f"{describe(value)}; allowed: an {kind.__name__}")
    if not value.alive:
        raise InfiniError.of(function, name, "destroyed; allowed: one that is not")
    return value


def _destroy(function: str, name: str, value: Any, kind: type[_Handle]) -> None:
    _need(function, name, value, kind).alive = False


def infiniopCreateHandle() -> infiniopHandle_t:
    """Make a handle to this thread's device."""
    return infiniopHandle_t(INFINI_DEVICE_CPU)


def infiniopDestroyHandle(handle: infiniopHandle_t | None) -> None:
    """Destroy a handle; a second call with it is BAD_PARAM."""
    _destroy("infiniopDestroyHandle", "handle", handle, infiniopHandle_t)


def infiniopCreateTensorDescriptor(
    ndim: int, shape: Sequence[int], strides: Sequence[int] | None, dtype: int
) -> infiniopTensorDescriptor_t:
    """Make the description of a tensor.

    Args:
        ndim: the number of axes.
        shape: the size of each axis.
        strides: the stride of each axis, in elements; None for a contiguous tensor.
        dtype: an :class:`infiniDtype_t`.

    Raises:
        InfiniError: BAD_PARAM.
    """
    name = "infiniopCreateTensorDescriptor"
    rank = _integer(name, "ndim", ndim)
    dims = InfiniError.sizes(name, "shape", _integers(name, "shape", shape, rank))
    steps = contiguous_strides(dims)
    if strides is not None:
        steps = _integers(name, "strides", strides, rank)
    kind = InfiniError.member(name, "dtype", infiniDtype_t, dtype)
    try:
        TensorSpec(dims, "float64", used_strides(dims, steps))  # of the largest elements
    except ValueError as error:  # the tensor would exceed the address space
        raise InfiniError(INFINI_STATUS_BAD_PARAM, name, str(error), "shape") from None
    return infiniopTensorDescriptor_t(dims, steps, kind)


def _integer(function: str, name: str, value: Any) -> int:
    try:
        return operator.index(value)
    except Exception:  # a caller's object may raise any type of exception
        raise InfiniError.of(function, name, f"{represent(value)}; allowed: an integer") from None


def _integers(function: str, name: str, values: Any, count: int) -> tuple[int, ...]:
    integers = InfiniError.integers(function, name, values, f"{count} integers")
    if len(integers) != count:
        raise InfiniError.of(function, name, f"{len(integers)} entries; allowed: ndim, {count}")
    return integers


def infiniopDestroyTensorDescriptor(desc: infiniopTensorDescriptor_t | None) -> None:
    """Destroy a descriptor; operators that were made from it stay valid."""
    _destroy("infiniopDestroyTensorDescriptor", "desc", desc, infiniopTensorDescriptor_t)


# The operator


def infiniopCreateBatchNormBackwardDescriptor(
    handle: infiniopHandle_t | None,
    grad_input: infiniopTensorDescriptor_t | None,
    grad_weight: infiniopTensorDescriptor_t | None,
    grad_bias: infiniopTensorDescriptor_t | None,
    input: infiniopTensorDescriptor_t | None,
    grad_output: infiniopTensorDescriptor_t | None,
    weight: infiniopTensorDescriptor_t | None,
    running_mean: infiniopTensorDescriptor_t | None,
    running_var: infiniopTensorDescriptor_t | None,
) -> infiniopBatchNormBackwardDescriptor_t:
    """Make an operator that computes batch norm's gradients for tensors of given descriptions.

    ``running_mean`` and ``running_var`` are the batch's own mean and biased variance; there is no
    eps. The mathematics is that of :func:`normgrad.batch_norm_backward` in training, with
    ``save_invstd = 1/sqrt(running_var)``.

    Args:
        handle: from :func:`infiniopCreateHandle`; its device is the operator's.
        grad_input, input, grad_output: descriptors of (N, C, L) tensors, contiguous.
        grad_weight, grad_bias, weight, running_mean, running_var: descriptors of (C,) vectors, with
            any positive stride. All eight have the same dtype: F16, F32 or BF16.

    Returns:
        The operator; the descriptors may be destroyed afterwards.

    Raises:
        InfiniError: BAD_PARAM for a null or a destroyed handle or descriptor,
            DEVICE_TYPE_NOT_SUPPORTED, BAD_TENSOR_DTYPE, BAD_TENSOR_SHAPE, BAD_TENSOR_STRIDES; they
            are checked in this order.
    """
    values = locals()
    owner = _need(_CREATE, "handle", handle, infiniopHandle_t)
    tensors = {
        row.name: _need(_CREATE, row.name, values[row.name], infiniopTensorDescriptor_t)
        for row in CONTRACT.tensors
    }
    _supported(_CREATE, owner.device)
    key = tuple([(each.dims, each.strides, each.dtype) for each in tensors.values()])
    entry = _plans.get(key)
    if entry is None:
        entry = _make_plan(tensors)
        _plans[key] = entry
    return infiniopBatchNormBackwardDescriptor_t(*entry)


#: The plans and specs of operators, by the descriptions of their tensors.
_plans: Cache[Hashable, tuple[Plan, Mapping[str, TensorSpec]]] = Cache()


def _make_plan(tensors: Mapping[str, Any]) -> tuple[Plan, Mapping[str, TensorSpec]]:
    """Check the descriptions of an operator's tensors, and make its plan and their specs."""
    try:
        rules.check(rules.BoundArguments(CONTRACT, ANY_PRODUCT, tensors), (ANY_PRODUCT,))
    except rules.ContractError as error:
        status = STATUSES[error.aspect]
        raise InfiniError(status, _CREATE, str(error), error.parameter) from None
    try:
        specs = {
            name: TensorSpec(each.dims, each.dtype_name, used_strides(each.dims, each.strides))
            for name, each in tensors.items()
        }
        # The plan does no checks of its own: the dialect's contract accepts nothing that normgrad's
        # operator would not accept.
        plan = Plan(
            _OPERATOR,
            Options(training=True, eps=0.0, mask=(True, True, True)),
            {ours: specs[theirs] for ours, theirs in THEIR_NAMES.items()},
            {name: specs[name] for name in OUTPUTS},
            {**THEIR_NAMES, **{name: name for name in OUTPUTS}},
        )
    except Exception as error:
        raise InfiniError(INFINI_STATUS_INTERNAL_ERROR, _CREATE, str(error)) from error
    return plan, specs


def infiniopGetBatchNormBackwardWorkspaceSize(
    desc: infiniopBatchNormBackwardDescriptor_t | None,
) -> int:
    """The bytes of scratch memory that the computation needs.

    Raises:
        InfiniError: BAD_PARAM.
    """
    name = "infiniopGetBatchNormBackwardWorkspaceSize"
    kind = infiniopBatchNormBackwardDescriptor_t
    size: int = _need(name, "desc", desc, kind).plan.workspace_size
    return size


def infiniopBatchNormBackward(
    desc: infiniopBatchNormBackwardDescriptor_t | None,
    workspace: Any,
    workspace_size: int,
    grad_input: Any,
    grad_weight: Any,
    grad_bias: Any,
    input: Any,
    grad_output: Any,
    weight: Any,
    running_mean: Any,
    running_var: Any,
    stream: Any = None,
) -> None:
    """Compute the gradients.

    Args:
        desc: the operator.
        workspace: any writable buffer of at least the size that the operator needs.
        workspace_size: the size of the workspace in bytes.
        grad_input, ..., running_var: the tensors' memory in the layout of their descriptors: NumPy
            arrays, PyTorch CPU tensors or buffers, of any dtype. ``grad_input`` may have exactly
            the memory of ``grad_output`` or ``input``.
        stream: ignored; the call returns when the gradients are written.

    Raises:
        InfiniError: BAD_PARAM for memory that is null or too small, or outputs that overlap;
            INSUFFICIENT_WORKSPACE.
    """
    values = locals()
    op = _need(_RUN, "desc", desc, infiniopBatchNormBackwardDescriptor_t)
    memory = {
        name: _locate(name, values[name], op.specs[name], name in OUTPUTS)
        for name in (*OUTPUTS, *INPUTS)
    }
    needed = op.plan.workspace_size
    if needed:
        of, size = "", needed
        if workspace is not None:
            workspace = InfiniError.memory(_RUN, "workspace", workspace, writing=True)
            of, size = f" of {workspace.nbytes}", workspace.nbytes
        if not isinstance(workspace_size, int) or min(size, workspace_size) < needed:
            message = f"{represent(workspace_size)} bytes{of}; allowed: {needed} or more"
            status = INFINI_STATUS_INSUFFICIENT_WORKSPACE
            raise InfiniError.of(_RUN, "workspace", message, status)
        if workspace is None:  # the size counts first, as in InfiniCore
            raise InfiniError.of(_RUN, "workspace", f"null; allowed: {needed} bytes")
        workspace = workspace._replace(nbytes=needed)

    addresses, owners = zip(*(memory.get(name, (0, None)) for name in ORDER), strict=True)
    try:
        op.plan.run_at(addresses, owners, workspace if needed else None)
    except ValueError as error:  # outputs that overlap, or cannot be written
        raise InfiniError(INFINI_STATUS_BAD_PARAM, _RUN, str(error)) from None
    except Exception as error:
        raise InfiniError(INFINI_STATUS_INTERNAL_ERROR, _RUN, str(error)) from error
    frameworks.count_writes(values[name] for name in OUTPUTS)


def _locate(name: str, value: Any, spec: TensorSpec, writing: bool) -> tuple[int, Any]:
    """The address of a tensor's first element, and the owner of its memory."""
    if not spec.elements:
        return 0, value
    if value is None:
        raise InfiniError.of(_RUN, name, "null; allowed: the tensor's memory")
    address, size, owner, *_ = InfiniError.memory(_RUN, name, value, writing)
    _, high = extent(spec.shape, spec.strides)
    needed = (high + 1) * spec.dtype.itemsize
    if size < needed:
        raise InfiniError.of(_RUN, name, f"{size} bytes; allowed: {needed}")
    return address, owner


def infiniopDestroyBatchNormBackwardDescriptor(
    desc: infiniopBatchNormBackwardDescriptor_t | None,
) -> None:
    """Destroy an operator."""
    kind = infiniopBatchNormBackwardDescriptor_t
    _destroy("infiniopDestroyBatchNormBackwardDescriptor", "desc", desc, kind)


__all__ = [name for name in dir() if name.lower().startswith("infini")]
