"""What the C libraries ask of Python: to check a call, to make its plan, and to compute some calls.

The structures are those of core.h. A plan's words (plans.c) are all that C needs to compute calls
of the same signature. Where there is more to do than to run kernels, such as copies of tensors with
unusual strides, C asks again.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...plans.plan import Plan
from ...support.forks import LOADING
from ...support.values import Invalid
from ...tensors.blocks import Memory
from .. import infiniop
from ..aclnn import aclBoolArray, aclCreateTensor, differences, phases, products
from ..aclnn.tensors import NUMPY, Status, aclDataType, aclTensor
from ..aclnn.translations import BY_NAME
from ..errors import DialectError
from ..infiniop import infiniStatus_t
from .declarations import digest

# Of enum kind, and of the numbers after it.
_BOOL_ARRAY, _TENSOR, _INFINI_HANDLE, _INFINI_TENSOR = 10, 6, 14, 15
_IS_NULL, _IS_INTEGER, _IS_REAL, _IS_BOOL = range(100, 104)

#: The size of memory that C knows nothing about, and of a text.
_UNKNOWN_SIZE, _MESSAGE_SIZE = 1 << 62, 4096

#: A chip of each product, by the name that its driver gives.
_CHIPS = {
    products.TRAINING_SERIES: "Ascend910A",
    products.A2: "Ascend910B3",
    products.A3: "Ascend910_9391",
    products.ASCEND_950: "Ascend950PR",
    products.INFERENCE_SERIES: "Ascend310P3",
    products.A200I: "Ascend310B1",
}

#: The number of a driver's addresses in C, and the places of none and of the workspace's.
_PLACES, _NO_PLACE, _WORKSPACE = 32, -1, -2


class _Object(ctypes.Structure):
    _fields_ = (("users", ctypes.c_int), ("drop", ctypes.c_void_p))


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("object", _Object),
        ("rank", ctypes.c_int64),
        ("storage_rank", ctypes.c_int64),
        ("offset", ctypes.c_int64),
        ("dims", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("storage", ctypes.POINTER(ctypes.c_int64)),
        ("data", ctypes.c_void_p),
        ("data_type", ctypes.c_int32),
        ("format", ctypes.c_int32),
        ("item_size", ctypes.c_int64),
    )


class _Array(ctypes.Structure):
    _fields_ = (("object", _Object), ("count", ctypes.c_uint64))


class _Argument(ctypes.Structure):
    _fields_ = (
        ("kind", ctypes.c_int),
        ("object", ctypes.c_void_p),
        ("integer", ctypes.c_int64),
        ("real", ctypes.c_double),
        ("problem", ctypes.c_char_p),
        ("block", ctypes.c_void_p),
        ("block_size", ctypes.c_uint64),
    )


class _Request(ctypes.Structure):
    _fields_ = (
        ("operator", ctypes.c_char_p),
        ("product", ctypes.c_char_p),
        ("save_invstd", ctypes.c_char_p),
        ("arguments", ctypes.POINTER(_Argument)),
        ("count", ctypes.c_int64),
        ("addresses", ctypes.POINTER(ctypes.c_void_p)),
        ("workspace", ctypes.c_void_p),
        ("size", ctypes.c_uint64),
        ("words", ctypes.POINTER(ctypes.c_int64)),
        ("capacity", ctypes.c_uint64),
        ("message", ctypes.c_void_p),
        ("notes", ctypes.c_void_p),
    )


_Answer = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(_Request))
_Hook = ctypes.CFUNCTYPE(None)


class _Table(ctypes.Structure):
    _fields_ = (
        ("answers", _Answer * 4),
        ("interrupted", ctypes.c_int),
        ("before_fork", _Hook),
        ("after_fork", _Hook),
    )


def fill(address: int, its_digest: str, embedded: bool) -> None:
    """Fill C's table of functions.

    Raises:
        RuntimeError: another version of normgrad has built the library.
    """
    if its_digest != digest():
        raise RuntimeError(
            "the C libraries were built by another version of normgrad; build them again with "
            "`normgrad capi build`"
        )
    table = _Table.from_address(address)
    for index, answer in enumerate((_find_plan, _run_plan, _read_config, _find_chip)):
        table.answers[index] = _Answer(_guarded(answer, table))
    if embedded:
        if os.environ.get("NORMGRAD_CAPI_REPORT"):  # a line on compiling is no finding
            os.environ["NORMGRAD_QUIET"] = "1"
        table.before_fork, table.after_fork = _Hook(LOADING.acquire), _Hook(LOADING.release)
    _kept.append(table)  # with its functions


_kept: list[_Table] = []


class _RefusedError(Exception):
    """A setting that is not allowed, with the status of the call that reads it."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def _guarded(answer: Callable[[Any], None], table: _Table) -> Callable[[Any], int]:
    """A function for C, which never raises: an exception becomes a status and a text."""

    def call(pointer: Any) -> int:
        request = pointer.contents
        try:
            try:
                answer(request)
            except DialectError as error:
                text = str(error).removeprefix(f"{error.function}: ")
                return _fail(request, int(error.status), text)
            except _RefusedError as error:
                return _fail(request, error.status, str(error))
            except BaseException as error:
                table.interrupted |= isinstance(error, KeyboardInterrupt)
                is_infini = (request.operator or b"").startswith(b"infini")
                status = (
                    infiniStatus_t.INFINI_STATUS_INTERNAL_ERROR
                    if is_infini
                    else Status.ACLNN_ERR_INNER
                )
                return _fail(request, int(status), f"unforeseen {type(error).__name__}: {error}")
        except KeyboardInterrupt:  # an interrupt during the handling of an error
            table.interrupted = 1
            return int(Status.ACLNN_ERR_INNER)
        return 0

    return call


def _fail(request: Any, status: int, text: str) -> int:
    _write_text(request.message, text, _MESSAGE_SIZE - 255)
    return status


def _write_text(address: int, text: str, size: int) -> None:
    """Write a text and a zero byte to ``size`` bytes; what does not fit is left out."""
    content = text.replace("\0", " ").encode("utf-8", "replace")[: size - 1]
    content = content.decode("utf-8", "ignore").encode()  # without a truncated character at the end
    ctypes.memmove(address, content + b"\0", len(content) + 1)


# Settings


def _checked_device(request: Any, status: int) -> products.Device:
    """The product whose contract counts; there may be none of the name that was set."""
    product, save_invstd = request.product.decode(), request.save_invstd.decode()
    try:
        return products.current(products.device(product or products.A2, save_invstd or "invstd"))
    except ValueError as error:
        raise _RefusedError(status, str(error)) from None


def _read_config(request: Any) -> None:
    """Check the product, and read the settings file; most settings have no effect here."""
    status = int(request.size)
    _checked_device(request, status)
    path = os.fsdecode(request.operator or b"")
    request.size = 0
    if not path:
        return
    try:
        settings = json.loads(Path(path).read_bytes() or b"{}")
    except OSError as error:
        problem = f"{path!r} ({error.strerror}); allowed: a file that is there"
        raise _RefusedError(status, f"configPath: {problem}") from None
    except (ValueError, RecursionError) as error:
        problem = f"{path!r} ({error}); allowed: a JSON file"
        raise _RefusedError(status, f"configPath: {problem}") from None
    request.size = isinstance(settings, dict) and "defaultDevice" in settings


def _find_chip(request: Any) -> None:
    """The chip that the environment variable names, otherwise a chip of the current product."""
    device = _checked_device(request, int(request.size))
    chip = request.product.decode().replace(" ", "")
    if not re.fullmatch(r"Ascend\d\w+", chip) or products.find(chip) is not device.product:
        chip = _CHIPS[device.product.name]
    _write_text(request.workspace, chip, request.capacity)


# Arguments


def _arguments(request: Any) -> list[Any]:
    return [_value(request.arguments[index]) for index in range(request.count)]


def _value(argument: Any) -> Any:
    """An argument of a C function, in the form that the dialects take."""
    kind = argument.kind
    if kind == _TENSOR:
        return _tensor(argument)
    if kind == _BOOL_ARRAY:
        array = _Array.from_address(argument.object)
        return aclBoolArray(
            map(bool, ctypes.string_at(argument.object + ctypes.sizeof(array), array.count))
        )
    if kind == _INFINI_TENSOR:
        it = _Tensor.from_address(argument.object)
        dims = [each % (1 << 64) for each in it.dims[: it.rank]]
        return infiniop.infiniopCreateTensorDescriptor(
            it.rank, dims, it.strides[: it.rank], it.data_type
        )
    if kind == _INFINI_HANDLE:
        return infiniop.infiniopCreateHandle()
    if kind == _IS_NULL:
        return None
    if kind in (_IS_INTEGER, _IS_BOOL):
        return argument.integer if kind == _IS_INTEGER else bool(argument.integer)
    return argument.real if kind == _IS_REAL else Invalid(argument.problem.decode(errors="replace"))


def _tensor(argument: Any) -> aclTensor:
    """The tensor of a C structure; its view may reach the whole block that its data is in."""
    it = _Tensor.from_address(argument.object)
    owner = Invalid(argument.problem.decode()) if argument.problem else _OWNER
    address, size, offset = it.data or 0, _UNKNOWN_SIZE, it.offset
    if argument.block and it.data_type in NUMPY:
        itemsize = NUMPY[aclDataType(it.data_type)].itemsize
        before = (address - argument.block) // itemsize
        address -= before * itemsize
        size, offset = argument.block + argument.block_size - address, offset + before
    return aclCreateTensor(
        it.dims[: it.rank], it.data_type, it.strides[: it.rank], offset, it.format,
        it.storage[: it.storage_rank], Memory(address, size, owner, True),
    )  # fmt: skip


#: What owns memory that C looks after.
_OWNER = object()


# Plans


def _find_plan(request: Any) -> None:
    operator = request.operator.decode()
    if operator == "infiniopCreateTensorDescriptor":
        _arguments(request)
        return
    if operator.startswith("infini"):
        _infini_plan(request)
        return
    translation = BY_NAME[operator]
    rows = [row.name for row in translation.contract.rows]
    arguments = dict(zip(rows, _arguments(request), strict=True))
    device = _checked_device(request, Status.ACLNN_ERR_PARAM_INVALID)
    size, executor = phases.phase_1(translation, arguments, device)
    prepared = executor.prepared
    if request.size:  # a report is wanted
        notes = "\n".join(differences.remarks(operator, arguments, device.saved_variance))
        _write_text(request.notes, notes, _MESSAGE_SIZE)
    used = []
    for use in prepared.uses(arguments):
        tensor = arguments[use.name]
        first, end = use.region.bounds()
        in_place = 0
        for index, name in enumerate(rows):
            other = arguments[name]
            if name in use.in_place and isinstance(other, aclTensor):
                in_place |= (other.region[1:] == use.region[1:]) << index
        span = first - tensor.address, end - tensor.address
        used.append((rows.index(use.name), *span, use.writes, in_place))
    order = [_NO_PLACE if name is None else rows.index(name) for name in prepared.order]
    is_whole = not prepared.dense_size and not prepared.zeros
    _write_plan(request, prepared.plan if is_whole else None, size, used, order)


def _infini_plan(request: Any) -> None:
    operator = infiniop.infiniopCreateBatchNormBackwardDescriptor(*_arguments(request))
    plan, names = operator.plan, ["handle", *infiniop.OUTPUTS, *infiniop.INPUTS]
    inputs, outputs = ([each for each in places if each] for places in (plan.inputs, plan.outputs))
    used = []
    for place in (*inputs, *outputs):
        in_place = sum(1 << names.index(each.name) for each in inputs if place.may_be(each))
        index = names.index(place.name)
        used.append((index, place.low, place.high, place in outputs, in_place))
    order = [_NO_PLACE if name == "" else names.index(name) for name in infiniop.ORDER]
    _write_plan(request, plan, plan.workspace_size, used, order)


def _write_plan(
    request: Any, plan: Plan | None, size: int, used: Sequence[Sequence[int]], order: Sequence[int]
) -> None:
    """Write a plan's words; without ``plan`` C has to ask to compute.

    If there are no kernels now, such as for want of memory, C asks too, and does not keep the plan.
    """
    schedule, is_native = None, 0
    if plan is not None:
        try:
            schedule = plan.native({})
        except Exception:  # which the computation raises again
            is_native = -1
    alignment, driver, team, counts = 1, 0, (0, 1), (0, 0, 0)
    places: list[int] = []
    tail: list[int] = []
    if plan is not None and schedule is not None and schedule.parallel:
        team = plan.team()
        if team[1] > 1 and not team[0]:  # Python's threads
            schedule = None
    if plan is not None and schedule is not None:
        block, steps, step_count, driver, _, _ = schedule
        alignment, is_native = plan.alignment, 1
        counts = step_count, len(block), len(steps)
        places += plan.in_slots((*order, _WORKSPACE, _NO_PLACE))
        tail = [*block, *steps]
    words = [size, alignment, is_native, driver, *team, *counts, len(used)]
    words += [int(each) for use in used for each in use]
    words += [*places, *[_NO_PLACE] * (_PLACES - len(places)), *tail]
    if len(words) > request.capacity:
        _write_plan(request, None, size, used, order)
        return
    ctypes.memmove(request.words, (ctypes.c_int64 * len(words))(*words), 8 * len(words))


def _run_plan(request: Any) -> None:
    """Compute a call that was checked, in Python."""
    operator = request.operator.decode()
    workspace = None
    if request.size:
        workspace = Memory(request.workspace, request.size, _OWNER, True)
    if operator.startswith("infini"):
        _run_infini(request, workspace)
        return
    translation = BY_NAME[operator]
    values = [
        _moved(value, request.addresses[i] or 0) for i, value in enumerate(_arguments(request))
    ]
    names = (row.name for row in translation.contract.rows)
    arguments: Mapping[str, Any] = dict(zip(names, values, strict=True))
    device = _checked_device(request, Status.ACLNN_ERR_PARAM_INVALID)
    _, executor = phases.phase_1(translation, arguments, device)
    phases.phase_2(translation, workspace, request.size, executor, None)


def _moved(value: Any, address: int) -> Any:
    """A tensor with its first element at another address; other arguments as they are."""
    if not isinstance(value, aclTensor) or value.address == address:
        return value
    memory = Memory(address, _UNKNOWN_SIZE, _OWNER, True)
    return aclCreateTensor(
        value.dims, value.data_type, value.strides, 0, value.format, value.storage_dims, memory
    )


def _run_infini(request: Any, workspace: Memory | None) -> None:
    operator = infiniop.infiniopCreateBatchNormBackwardDescriptor(*_arguments(request))
    data = [
        Memory(request.addresses[index], _UNKNOWN_SIZE, _OWNER, True)
        if request.addresses[index]
        else None
        for index in range(1, request.count)
    ]
    infiniop.infiniopBatchNormBackward(operator, workspace, request.size, *data)
