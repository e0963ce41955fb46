"""The two phases: phase 1 makes a plan from a call's arguments, phase 2 computes with the plan."""

from __future__ import annotations

import numbers
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ...plans.cache import Cache
from ...plans.plan import Plan
from ...support.memory import LINE
from ...support.values import describe, represent
from ...tensors import dtypes
from ...tensors.blocks import Memory
from ...tensors.specs import ReachError, TensorSpec
from ...tensors.strides import Region, overlap, overlaps_itself, reshape_strides, round_up
from ..rules import EVERY, Aspect, BoundArguments, Breach, Contract, ContractError, check
from .products import PRODUCTS, Device, current
from .tensors import AclnnError, Status, aclBoolArray, aclTensor
from .translations import Dims, Translation

#: The statuses of broken rules, by what they are about.
STATUSES = {
    **dict.fromkeys(EVERY, Status.ACLNN_ERR_PARAM_INVALID),
    Aspect.NULL: Status.ACLNN_ERR_PARAM_NULLPTR,
    Aspect.PRODUCT: Status.ACLNN_ERR_INNER_FIND_KERNEL_ERROR,
}

#: The outputs that may have exactly the memory of the data.
_IN_PLACE = ("gradInput", "output", "yOut")


class Use(NamedTuple):
    """A use of memory by phase 2.

    Attributes:
        name: the parameter's name.
        region: the bytes.
        writes: whether they are written.
        in_place: the parameters of the same call that may have exactly this region.
    """

    name: str
    region: Region
    writes: bool
    in_place: tuple[str, ...] = ()


class _Operand(NamedTuple):
    """The spec of a tensor for a plan: of the tensor as it is or reshaped, or of a dense copy."""

    spec: TensorSpec
    is_copy: bool


@dataclass(frozen=True, eq=False)
class _Prepared:
    """The result of phase 1, which depends on signatures alone and is cached by them.

    ``plan`` is None if there is nothing to compute; the outputs named by ``zeros`` are then 0.
    """

    plan: Plan | None
    operands: Mapping[str, _Operand]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    dense_size: int
    workspace_size: int
    zeros: tuple[str, ...] = ()

    @cached_property
    def used(self) -> tuple[str, ...]:
        """The names of the tensors that phase 2 reads or writes."""
        return (*self.operands, *self.zeros)

    @cached_property
    def order(self) -> tuple[str | None, ...]:
        """The names of the plan's inputs and outputs in their order; None where absent."""
        return tuple(name if name in self.operands else None for name in self.inputs + self.outputs)

    @cached_property
    def results(self) -> tuple[str, ...]:
        """The names of the outputs that the plan writes."""
        return tuple(filter(None, self.order[len(self.inputs) :]))

    def uses(self, tensors: Mapping[str, Any]) -> list[Use]:
        """The uses of the tensors' memory by phase 2."""
        return [
            Use(
                name,
                tensors[name].region,
                name in self.outputs or name not in self.inputs,
                ("gradOut", "input", "x") if name in _IN_PLACE else (),
            )
            for name in self.used
        ]


@dataclass(eq=False, repr=False, slots=True)
class aclOpExecutor:
    """The object that phase 1 returns for one use in phase 2.

    Attributes:
        repeatable: whether the executor may be used any number of times.
    """

    name: str
    prepared: _Prepared
    tensors: Mapping[str, Any]
    repeatable: bool = False
    _once: list[None] = field(default_factory=lambda: [None], init=False)

    def take(self) -> bool:
        """Use the executor for a run; False if it is used up. Of two threads only one succeeds."""
        if self.repeatable:
            return bool(self._once)  # False if it was used before it became repeatable
        try:
            self._once.pop()
        except IndexError:
            return False
        return True


_cache: Cache[Hashable, _Prepared] = Cache()


def phase_1(
    translation: Translation, arguments: Mapping[str, Any], device: Device | None = None
) -> tuple[int, aclOpExecutor]:
    """Check a call, and make its plan.

    ``device`` is the device whose contract counts; None for the current one.

    Raises:
        AclnnError: with the status that the contract gives.
    """
    contract, device = translation.contract, device or current()
    is_read = _READ_TYPES.issuperset(map(type, arguments.values()))
    key = _key(contract, device, arguments) if is_read else None
    prepared = _cache.get(key)
    if prepared is None:
        call = _read(contract, device, arguments)
        if not (is_read or call.unusable):
            key = _key(contract, device, call.arguments)
            prepared = _cache.get(key)
    if prepared is None:
        try:
            prepared = _prepare(translation, device, call)
        except ContractError as error:
            status = STATUSES[error.aspect]
            raise AclnnError(status, contract.name, str(error), error.parameter) from None
        except Exception as error:
            message = f"phase 1: {error}"
            raise AclnnError(Status.ACLNN_ERR_INNER, contract.name, message) from error
        _cache[key] = prepared
    return prepared.workspace_size, aclOpExecutor(contract.name, prepared, arguments)


#: The types of arguments after :func:`_read`.
_READ_TYPES = frozenset({aclTensor, aclBoolArray, bool, int, float, type(None)})


def _key(contract: Contract, device: Device, arguments: Mapping[str, Any]) -> Hashable:
    """The cache's key of a call: all that its check and its plan depend on."""
    values = arguments.values()
    signatures = [value.signature if type(value) is aclTensor else value for value in values]
    # The types are in the key since True equals 1.
    settings = contract.name, device.product.name, device.saved_variance
    return (*settings, *map(type, values), *signatures)


def _read(contract: Contract, device: Device, arguments: Mapping[str, Any]) -> BoundArguments:
    """Convert the scalars to Python's own types, and sort out arguments of a wrong type."""
    read = dict(arguments)
    unusable: dict[str, Breach] = {}
    for row in contract.tensors:
        value = read[row.name]
        if value is not None and type(value) is not aclTensor:
            unusable[row.name] = describe(value), "an aclTensor, from aclCreateTensor"
    for scalar in contract.scalars:
        read[scalar.name] = _scalar(scalar.name, read[scalar.name], unusable)
    return BoundArguments(contract, device.product, read, unusable)


def _scalar(name: str, value: Any, unusable: dict[str, Breach]) -> Any:
    """Convert a scalar to Python's own type, or add it to ``unusable``, which is checked later."""
    kind = type(value)
    if name == "outputMask" and value is not None:
        if kind is aclBoolArray:
            return value
        try:
            return aclBoolArray(value)
        except Exception:  # iterating over a caller's object may raise any type of exception
            unusable[name] = (represent(value), "an aclBoolArray of size 3")
            return ()
    if value is None or kind is bool or kind is int or kind is float:
        return value
    if isinstance(value, (np.bool_, np.integer)):
        return value.item()
    if isinstance(value, numbers.Real):
        return value
    unusable[name] = (represent(value), "a plain number or boolean")
    return None


def _prepare(translation: Translation, device: Device, call: BoundArguments) -> _Prepared:
    check(call, PRODUCTS)
    tensors = call.arguments
    form = translation.form(call, device.saved_variance)
    names = (*translation.inputs, *filter(None, form.results))
    used = {name: tensor for name in names if (tensor := tensors[name]) is not None}
    for name, tensor in used.items():
        if tensor.unusable is not None:
            raise ContractError(name, tensor.unusable)
        if name in translation.outputs and overlaps_itself(tensor.dims, tensor.steps):
            message = f"strides {tensor.strides} name some elements twice; allowed: one place each"
            raise ContractError(name, message)

    if 0 in tensors[translation.data].dims:
        zeros = tuple(
            name
            for name, tensor in used.items()
            if name in translation.outputs and 0 not in tensor.dims
        )
        return _Prepared(None, {}, (), (), 0, 0, zeros)
    operands, dense_size = {}, 0
    dims = translation.dims(call)
    for name, tensor in used.items():
        try:
            operand = _operand(tensor, dims.get(name, tensor.dims))
        except ReachError as error:
            raise ContractError(name, str(error)) from None
        if operand.is_copy:
            dense_size += round_up(operand.spec.nbytes, LINE)
        operands[name] = operand
    plan = None
    if any(form.results):
        aliases = translation.names
        outputs = {our: operands[its].spec for our, its in aliases.items() if its in operands}
        inputs = {name: outputs.pop(name) for name in form.operator.names if name in outputs}
        # The plan does no checks of its own: the dialect's contract accepts nothing that
        # normgrad's operator would not accept.
        plan = Plan(form.operator, form.options, inputs, outputs, aliases)
    size = 0
    if plan is not None and (dense_size or plan.workspace_size):
        size = dense_size + plan.workspace_size + (LINE - 1 if dense_size else 0)
    return _Prepared(plan, operands, translation.inputs, form.results, dense_size, size)


def _operand(tensor: aclTensor, dims: Dims) -> _Operand:
    """The operand for a tensor that is read with these dims."""
    dtype = dtypes.BY_NAME[tensor.dtype_name]
    if dims == tensor.dims:
        return _Operand(TensorSpec(dims, dtype, tensor.steps), False)
    steps = reshape_strides(tensor.dims, tensor.steps, dims)
    return _Operand(TensorSpec(dims, dtype, steps), is_copy=steps is None)


def phase_2(
    translation: Translation, workspace: Any, workspace_size: Any, executor: Any, stream: Any
) -> None:
    """Compute with the plan of phase 1.

    Raises:
        AclnnError: with the status that the contract gives.
    """
    name = translation.contract.name
    error, null = partial(AclnnError.of, name), Status.ACLNN_ERR_PARAM_NULLPTR
    if executor is None:
        raise error("executor", "null; allowed: what phase 1 returned", null)
    if not isinstance(executor, aclOpExecutor):
        raise error("executor", f"{describe(executor)}; allowed: what phase 1 returned")
    needed = executor.prepared.workspace_size
    if isinstance(workspace_size, np.integer):
        workspace_size = int(workspace_size)
    if workspace is None and needed > 0:
        raise error("workspace", f"null; allowed: {needed} bytes", null)
    if executor.name != name:
        raise error("executor", f"of {executor.name}; allowed: one of {name}")
    if not isinstance(workspace_size, int) or workspace_size < needed:
        size = represent(workspace_size)
        raise error("workspaceSize", f"{size}; allowed: {needed} or more, phase 1's size")
    if needed > 0:
        scratch = AclnnError.memory(name, "workspace", workspace, writing=True)
        if scratch.nbytes < needed:
            raise error("workspace", f"{scratch.nbytes} bytes; allowed: {needed}")
        workspace = Memory(scratch.address, needed, scratch.owner, True)
    prepared = executor.prepared
    for parameter in prepared.used:
        loss = executor.tensors[parameter].loss()
        if loss is not None:
            raise error(parameter, f"{loss} since phase 1; allowed: what stays until phase 2")
    if not executor.take():
        raise error("executor", "used already; allowed: a new one")
    try:
        _run(prepared, executor.tensors, workspace)
    except Exception as error:
        message = f"phase 2: {error}"
        raise AclnnError(Status.ACLNN_ERR_RUNTIME_ERROR, name, message) from error


def _run(prepared: _Prepared, tensors: Mapping[str, Any], workspace: Memory | None) -> None:
    """Do the work of phase 2."""
    outputs = (*prepared.results, *prepared.zeros)
    for name in outputs:
        if not (tensors[name].memory.writeable or 0 in tensors[name].dims):
            raise ValueError(f"{name}: read-only memory; allowed: memory that can be written")
    for name in prepared.zeros:
        tensors[name].array[...] = 0
    if prepared.plan is not None:
        _run_plan(prepared, prepared.plan, tensors, workspace)
    for name in outputs:
        tensors[name].mark_written()


def _run_plan(
    prepared: _Prepared,
    plan: Plan,
    tensors: Mapping[str, Any],
    workspace: Memory | None,
) -> None:
    """Write the plan's outputs."""
    rest: Any = workspace
    dense: dict[str, npt.NDArray[Any]] = {}
    if prepared.dense_size:
        assert workspace is not None
        # The plan cannot check this, since it gets dense copies in place of some tensors.
        scratch = Region(workspace.address, (workspace.nbytes,), (1,), 1)
        _check_apart([Use("workspace", scratch, True), *prepared.uses(tensors)])
        dense, rest = _dense_copies(prepared, workspace.bytes())
        for name in dense.keys() & prepared.inputs:
            dense[name].reshape(tensors[name].dims)[...] = tensors[name].array
    addresses: list[int] = []
    owners: list[Any] = []
    for parameter in prepared.order:
        if parameter is None:
            addresses.append(0)
            owners.append(None)
        elif parameter in dense:
            addresses.append(dense[parameter].ctypes.data)
            owners.append(dense[parameter])
        else:
            addresses.append(tensors[parameter].address)
            owners.append(tensors[parameter].memory.owner)
    plan.run_at(addresses, owners, rest)
    for name in dense.keys() & prepared.results:
        tensors[name].array[...] = dense[name].reshape(tensors[name].dims)


def _check_apart(uses: Sequence[Use]) -> None:
    """Raise an error for a use that writes bytes of another, and may not have just its region."""
    for index, use in enumerate(uses):
        for earlier in uses[:index]:
            mine, other = (use, earlier) if use.writes else (earlier, use)
            is_in_place = other.name in mine.in_place and mine.region == other.region
            if mine.writes and not is_in_place and overlap(mine.region, other.region):
                message = f"shares memory with {other.name}; allowed: memory of its own"
                raise ValueError(f"{mine.name}: {message}")


def _dense_copies(
    prepared: _Prepared, workspace: npt.NDArray[np.uint8]
) -> tuple[dict[str, npt.NDArray[Any]], npt.NDArray[np.uint8]]:
    """Arrays in the workspace for the dense copies, by name, and the rest of the workspace.

    The copies lie behind one another, and each starts at a cache line.
    """
    rest = workspace[-workspace.ctypes.data % LINE :]
    dense = {}
    for name, operand in prepared.operands.items():
        if operand.is_copy:
            spec = operand.spec
            dense[name] = rest[: spec.nbytes].view(spec.dtype.numpy).reshape(spec.shape)
            rest = rest[round_up(spec.nbytes, LINE) :]
    return dense, rest
