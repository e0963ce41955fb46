"""A common interface to NumPy arrays, PyTorch tensors and DLPack producers.

Each framework has a class. None of them imports PyTorch: it is looked up among the loaded modules,
since a caller that has a tensor has loaded it.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from ..support import memory, torch_build
from ..support.values import describe
from . import devices, dlpack, dtypes
from .dtypes import DType
from .specs import KINDS, OpenTensor, TensorSpec
from .strides import Region, dense_like, divides, extent


class Seen(NamedTuple):
    """What can be seen of plain tensors at a glance.

    Attributes:
        signature: the shapes, strides, dtypes and devices.
        addresses: the address of each tensor; 0 where absent.
        rooms: the bytes of each tensor's storage from its first element on, where a storage may be
            smaller than its tensor.
        owners: what keeps the memory alive even if other code replaces that of a tensor.
    """

    signature: tuple[Any, ...]
    addresses: list[int]
    rooms: Sequence[int] = ()
    owners: Sequence[Any] = ()


class Framework(ABC):
    """The interface of a framework. ``value`` is always one of its own tensors.

    Attributes:
        name: the kind of its tensors, in messages.
        is_known: whether normgrad knows the tensors' class: new ones are made faster from one with
            the same spec.
    """

    name: str
    is_known = True

    @abstractmethod
    def open(self, name: str, value: Any, writing: bool) -> OpenTensor:
        """Open a tensor of a sort that operators take.

        An input that can only be read as a copy is copied; an output must not be one.
        """

    @abstractmethod
    def device(self, name: str, value: Any) -> str:
        """The device of the tensor, such as "cpu" or "cuda:0"."""

    def spec_of(self, name: str, value: Any, allowed: Sequence[DType]) -> TensorSpec:
        """The spec of a tensor on any device, without access to its data."""
        return self.open(name, value, writing=False).spec(name, allowed)

    @abstractmethod
    def empty(self, spec: TensorSpec) -> Any:
        """A new tensor on the CPU, which is NumPy's or PyTorch's."""

    def look(self, values: tuple[Any, ...], outputs: int) -> Seen | None:
        """What can be seen of plain tensors at a glance; None if there is another among them.

        ``outputs`` is the index of the first tensor that is to be written. Tensors whose
        derivatives autograd would lose are not plain.
        """
        return None

    def maker(self, spec: TensorSpec, device: str, alike: bool) -> Callable[[Any], Any]:
        """A function that makes new tensors on a device from ``like``, one of the caller's there.

        ``alike`` says that ``like`` will be an opened tensor with the same spec.
        """
        if device == devices.CPU:
            return lambda like: self.empty(spec)
        return lambda like: self.empty_on(spec, device, like)

    def empty_on(self, spec: TensorSpec, device: str, like: Any) -> Any:
        """A new tensor of PyTorch's on a GPU; ``like`` is one of the caller's tensors there."""
        raise NotImplementedError

    def result(self, value: Any, like: Any) -> Any:
        """Convert a new tensor to what the caller gets; ``like`` is one of the caller's."""
        return value

    def lost(self, tensors: Sequence[Any]) -> str | None:
        """What derivative of opened tensors is lost in a call that autograd does not record.

        The answer is a part of a message; None if no derivative is lost. Entries may be None.
        """
        return None

    def keep_derivatives(self, name: str, tensor: Any, recording: str = "") -> None:
        """Raise a ValueError if a call that autograd does not record loses a tensor's derivative.

        ``recording`` is the name of a function that does the same and is recorded.
        """
        reason = self.lost((tensor,))
        if reason is not None:
            others = f"; or {recording}, which autograd records" if recording else ""
            raise ValueError(f"{name}: {reason}{others}")


class _Interface(ctypes.Structure):
    """NumPy's PyArrayInterface, which ``__array_struct__`` of an array tells the address of.

    The structure lives as long as that attribute's value. Reading it takes half the time of
    ``ctypes.data``, and a third of that of ``__array_interface__``.
    """

    _fields_ = (
        ("two", ctypes.c_int),
        ("rank", ctypes.c_int),
        ("kind", ctypes.c_char),
        ("itemsize", ctypes.c_int),
        ("flags", ctypes.c_int),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("data", ctypes.c_size_t),
    )


#: The flag of an array that can be written.
_WRITEABLE = 0x400
_interface_at = _Interface.from_address


def address_of(new: Any) -> int:
    """The address of a new tensor that a framework's method made."""
    if isinstance(new, np.ndarray):
        capsule = new.__array_struct__
        return int(_interface_at(dlpack.get_pointer(capsule, None)).data)
    return int(new.data_ptr())


def pin(value: Any) -> Any:
    """What keeps the memory of an array where it is: NumPy resizes none with a weak reference."""
    return weakref.ref(value) if isinstance(value, np.ndarray) else None


def _has_gaps(spec: TensorSpec) -> bool:
    """Whether a tensor's elements have gaps between them, which no framework's copy would have."""
    return dense_like(spec.shape, spec.strides) != spec.strides


class NumPy(Framework):
    """numpy.ndarray. An input whose strides are not multiples of the item size is copied."""

    name = "NumPy array"

    def open(self, name: str, value: Any, writing: bool) -> OpenTensor:
        # The attribute np.ma would import the module. If it is not loaded, the array is not masked.
        if isinstance(value, getattr(sys.modules.get("numpy.ma"), "MaskedArray", ())):
            raise TypeError(f"{name}: a masked array; allowed: {KINDS}, without a mask")
        # A plain array, without the overrides of a subclass.
        array = np.asarray(value)
        dtype = dtypes.from_numpy(array.dtype)
        original = None
        if not writing and dtype and not divides(dtype.itemsize, array.shape, array.strides):
            # The region is described in bytes.
            by_bytes = (*array.shape, array.itemsize), (*array.strides, 1)
            original = Region(array.ctypes.data, *by_bytes, 1)
            with memory.allocating(name, array.nbytes):
                array = np.array(array)
        kind: DType | str | None = dtype
        if kind is None:  # only then, since the name takes microseconds
            kind = str(array.dtype) if array.dtype.isnative else array.dtype.str
        read_only = "a read-only array; allowed: one that can be written"
        return OpenTensor(
            array, address_of(array), array.shape, array.strides, array.itemsize,
            kind, None if array.flags.writeable else read_only, original,
        )  # fmt: skip

    def device(self, name: str, value: Any) -> str:
        return devices.CPU

    def empty(self, spec: TensorSpec) -> Any:
        size = spec.nbytes
        flat = None if size < memory.ALIGNED else memory.aligned(size)
        return np.ndarray(spec.shape, spec.dtype.numpy, flat, 0, spec.steps)

    def maker(self, spec: TensorSpec, device: str, alike: bool) -> Callable[[Any], Any]:
        if alike and spec.nbytes < memory.ALIGNED and not _has_gaps(spec):
            return np.empty_like
        return super().maker(spec, device, alike)

    def look(self, values: tuple[Any, ...], outputs: int) -> Seen | None:
        signature: list[Any] = []
        addresses: list[int] = []
        for index, value in enumerate(values):
            if value is None:
                signature.append(None)
                addresses.append(0)
                continue
            if type(value) is not np.ndarray:
                return None
            capsule = value.__array_struct__
            interface = _interface_at(dlpack.get_pointer(capsule, None))
            if index >= outputs and not interface.flags & _WRITEABLE:
                return None
            address = interface.data
            if not address:
                return None
            signature += value.shape, value.strides, value.dtype
            addresses.append(address)
        return Seen(tuple(signature), addresses)


#: PyTorch results of at least this size ask for huge pages, as NumPy's arrays do. With them, batch
#: norm's gradients in new memory of 50 to 196 MiB took 0.42 to 0.47 of the time.
_HUGE = 4 << 20


def _prefer_huge(address: int, size: int) -> None:
    """Ask Linux for huge pages behind memory that was not written yet."""
    if sys.platform.startswith("linux"):
        start, end = -(-address // mmap.PAGESIZE), (address + size) // mmap.PAGESIZE
        place, length = ctypes.c_void_p(start * mmap.PAGESIZE), (end - start) * mmap.PAGESIZE
        ctypes.CDLL(None).madvise(place, ctypes.c_size_t(length), mmap.MADV_HUGEPAGE)


class Torch(Framework):
    """torch.Tensor. Data are read and written through their address, so autograd records nothing.

    An input that is a negated view (the imaginary part of a conjugate) is copied. A storage may
    have been resized to fewer bytes than its tensor needs, so its size is checked.
    """

    name = "PyTorch tensor"

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._from_torch = {getattr(torch, dtype.name): dtype for dtype in dtypes.BY_NAME.values()}
        self._to_torch = {dtype: theirs for theirs, dtype in self._from_torch.items()}
        self._cpu = torch.device("cpu")
        self._types = (torch.Tensor, torch.nn.Parameter)
        self._increment = torch.autograd.graph.increment_version
        self._forward_ad = torch.autograd.forward_ad
        COUNTED.update(self._types)

    def open(self, name: str, value: Any, writing: bool) -> OpenTensor:
        dispatch = self._torch.Tensor.__torch_dispatch__
        if type(value).__torch_dispatch__ is not dispatch:
            # Fake, distributed and other wrapping tensors have no memory of their own.
            raise TypeError(
                f"{name}: {describe(value)} without memory of its own; allowed: {KINDS}"
            )
        with self._torch._C.DisableTorchFunctionSubclass():
            self._check_strided(name, value)
            if type(value) not in self._types:  # a subclass may redefine data_ptr()
                value = self._torch.Tensor.as_subclass(value, self._torch.Tensor)
        with suppress(RuntimeError):  # a batched tensor has no storage, and no address below
            reason = self.shortage(value)
            if reason is not None:
                raise ValueError(f"{name}: {reason}")
        tensor, original, size = value, None, value.itemsize
        if value.is_neg():
            if writing:
                raise ValueError(f"{name}: a view that negates; allowed: a plain tensor")
            with memory.allocating(name, value.nbytes):
                value = value.resolve_neg()
        try:
            if value is not tensor:
                original = Region(tensor.data_ptr(), tensor.shape, tensor.stride(), size)
            address = value.data_ptr()
        except RuntimeError as error:
            address = str(error)
        steps = tuple([step * size for step in value.stride()])
        dtype = self._dtype_of(value)
        return OpenTensor(value, address, value.shape, steps, size, dtype, None, original)

    def _dtype_of(self, value: Any) -> DType | str:
        """The tensor's dtype, or the name of one that no operator takes."""
        return self._from_torch.get(value.dtype) or str(value.dtype).removeprefix("torch.")

    def shortage(self, value: Any) -> str | None:
        """The message on a storage too small for the tensor's elements; None if it is not."""
        if 0 in value.shape:
            return None
        _, last = extent(value.shape, value.stride())
        size: int = value.untyped_storage().nbytes()
        room = size - value.storage_offset() * value.itemsize
        needed = (last + 1) * value.itemsize
        return None if room >= needed else memory.shortage(room, needed)

    def _check_strided(self, name: str, value: Any) -> None:
        if value.is_nested:
            raise TypeError(f"{name}: a nested tensor; allowed: one with a shape")
        if isinstance(value, self._torch.nn.parameter.UninitializedTensorMixin):
            raise TypeError(f"{name}: an uninitialized parameter; allowed: one with a shape")
        if value.layout is not self._torch.strided:
            raise TypeError(f"{name}: a tensor with layout {value.layout}; allowed: torch.strided")

    def spec_of(self, name: str, value: Any, allowed: Sequence[DType]) -> TensorSpec:
        with self._torch._C.DisableTorchFunctionSubclass():
            self._check_strided(name, value)
            dtype = self._dtype_of(value)
            if isinstance(dtype, str):
                raise dtypes.unsupported(name, dtype, allowed)
            return TensorSpec(value.shape, dtype, value.stride())

    def device(self, name: str, value: Any) -> str:
        with self._torch._C.DisableTorchFunctionSubclass():
            return devices.CPU if value.is_cpu else str(value.device)

    def empty(self, spec: TensorSpec) -> Any:
        dtype = self._to_torch[spec.dtype]
        new = self._torch.empty_strided(spec.shape, spec.strides, dtype=dtype, device=self._cpu)
        self._check_type(new)
        if spec.nbytes >= _HUGE:
            _prefer_huge(new.data_ptr(), spec.nbytes)
        return new

    def maker(self, spec: TensorSpec, device: str, alike: bool) -> Callable[[Any], Any]:
        # PyTorch reads a tensor 1 µs faster than a shape, strides, a dtype and a device.
        if alike and device == devices.CPU and spec.nbytes < _HUGE and not _has_gaps(spec):
            empty_like, tensor_type = self._torch.empty_like, self._torch.Tensor

            def make(like: Any) -> Any:
                new = empty_like(like)
                return new if type(new) is tensor_type else self._check_type(new)

            return make
        return super().maker(spec, device, alike)

    def look(self, values: tuple[Any, ...], outputs: int) -> Seen | None:
        signature: list[Any] = []
        addresses: list[int] = []
        rooms: list[int] = []
        storages: list[Any] = []
        if self._forward_ad._current_level >= 0:
            return None
        try:
            for value in values:
                if value is None:
                    signature.append(None)
                    addresses.append(0)
                    rooms.append(sys.maxsize)
                    continue
                if type(value) not in self._types or value.is_neg():
                    return None
                if value.requires_grad and self._torch.is_grad_enabled():
                    return None
                storage = value.untyped_storage()
                start, offset = storage.data_ptr(), value.storage_offset() * value.itemsize
                if not start:
                    return None
                signature += value.shape, value.stride(), value.dtype, value.device
                addresses.append(start + offset)
                rooms.append(storage.nbytes() - offset)
                storages.append(storage)
        except RuntimeError:  # a batched, sparse or nested tensor lacks some of it
            return None
        return Seen(tuple(signature), addresses, rooms, storages)

    def empty_on(self, spec: TensorSpec, device: str, like: Any) -> Any:
        options = {"dtype": self._to_torch[spec.dtype], "device": getattr(like, "device", device)}
        return self._check_type(self._torch.empty_strided(spec.shape, spec.strides, **options))

    def bytes_on(self, device: str, size: int) -> Any:
        """A new tensor of ``size`` bytes on a GPU."""
        return self._check_type(self._torch.empty(size, dtype=self._torch.uint8, device=device))

    def over(self, flat: Any, spec: TensorSpec) -> Any:
        """A tensor with this spec over a DLPack producer's memory of bytes."""
        flat = self._check_type(self._torch.from_dlpack(flat))
        return flat.view(self._to_torch[spec.dtype]).as_strided(spec.shape, spec.strides)

    def lost(self, tensors: Sequence[Any]) -> str | None:
        if (
            True in [each is not None and each.requires_grad for each in tensors]
            and self._torch.is_grad_enabled()
        ):
            return "requires a gradient, which would be lost; allowed: detach(), torch.no_grad()"
        if self._forward_ad._current_level >= 0:  # then PyTorch computes forward-mode derivatives
            for each in tensors:
                if each is not None and self._forward_ad.unpack_dual(each).tangent is not None:
                    return "has a tangent, which would be lost; allowed: detach()"
        return None

    def _check_type(self, new: Any) -> Any:
        """The new tensor; a TypeError if the mode that is active makes others than PyTorch's."""
        if type(new) is not self._torch.Tensor:
            raise TypeError(
                f"new tensors are {type(new).__name__}s under the mode that is active; allowed: "
                "plain tensors, or out= for all results"
            )
        return new

    def count_writes(self, values: list[Any]) -> None:
        """Count that these tensors were written to, for :func:`count_writes`."""
        try:
            self._increment(values)
        except RuntimeError:
            # It stopped at a tensor that was made in inference mode, which has no count. To count
            # those before it twice does no harm.
            for value in values:
                if not value.is_inference():
                    self._increment(value)


class DLPack(Framework):
    """Any object with ``__dlpack__``; its array namespace converts results to its own type."""

    name = "DLPack producer"
    is_known = False

    def open(self, name: str, value: Any, writing: bool) -> OpenTensor:
        device = dlpack.device_of(name, value)
        return dlpack.open_tensor(name, value, device, self._stream(device))

    def spec_of(self, name: str, value: Any, allowed: Sequence[DType]) -> TensorSpec:
        device = dlpack.device_of(name, value)
        stream = dlpack.NO_STREAM if devices.is_cuda(device) else None
        return dlpack.open_tensor(name, value, device, stream).spec(name, allowed)

    def _stream(self, device: str) -> int | None:
        """PyTorch's current stream, on which kernels are launched, in the protocol's terms."""
        torch = sys.modules.get("torch")
        if not devices.is_cuda(device):
            return None
        if torch is None or not torch.cuda.is_initialized():
            return dlpack.DEFAULT_STREAM
        stream: int = torch.cuda.current_stream(devices.index_of(device)).cuda_stream
        return stream or dlpack.DEFAULT_STREAM

    def device(self, name: str, value: Any) -> str:
        return dlpack.device_of(name, value)

    def empty(self, spec: TensorSpec) -> Any:
        return NUMPY.empty(spec)

    def empty_on(self, spec: TensorSpec, device: str, like: Any) -> Any:
        torch = of_torch()
        _, size = spec.reach
        flat = dlpack.bytes_like(like, size) if size else None
        if flat is not None:
            # Here PyTorch makes its stream wait for the producer's stream. When the result is
            # converted back, the producer's stream waits for PyTorch's.
            with suppress(Exception):
                return torch.over(flat, spec)
        return torch.empty_on(spec, device, None)

    def result(self, value: Any, like: Any) -> Any:
        return dlpack.like_producer(value, like)


#: What computes an operator on plain tensors of PyTorch in C++, by its name, whether it updates
#: running statistics in place, its tensors and its other arguments, or returns NotImplemented; None
#: where that is not loaded.
compute_in_cpp: Callable[[str, bool, tuple[Any, ...], tuple[Any, ...]], Any] | None = None
#: What makes a function that runs a plan in C++ on plain tensors of PyTorch like these, or returns
#: NotImplemented; None where that is not loaded. It makes None for a GPU's plans.
prepare_in_cpp: Callable[[Any, tuple[Any, ...]], Callable[..., Any] | None] | None = None

#: The types of plain tensors whose writes are counted: PyTorch's, but for subclasses.
COUNTED: set[type] = set()

NUMPY = NumPy()
_dlpack = DLPack()


def of(name: str, value: Any) -> Framework:
    """The framework of a tensor."""
    if isinstance(value, np.ndarray):
        return NUMPY
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, getattr(torch, "Tensor", ())):
        return of_torch()
    if hasattr(type(value), "__dlpack__") and not isinstance(value, (type, np.generic)):
        return _dlpack
    raise TypeError(f"{name}: {describe(value)}; allowed: {KINDS}")


def of_plain(value: Any) -> Framework | None:
    """The framework of a tensor that may be plain; None if it is not."""
    if type(value) is np.ndarray:
        return NUMPY
    if not COUNTED and isinstance(value, getattr(sys.modules.get("torch"), "Tensor", ())):
        of_torch()  # the types are known from then on
    return of_torch() if type(value) in COUNTED else None


@cache
def of_torch() -> Torch:
    """The interface to PyTorch, which is imported unless it is loaded already.

    If C++ can compute on its tensors, that is loaded too.
    """
    import torch

    if torch_build.missing() is None:
        from ..torch import native  # noqa: F401 - it sets compute_in_cpp
    return Torch(torch)


def count_writes(values: Iterable[Any]) -> None:
    """Have PyTorch count that those of the values that are its own tensors were written to.

    Autograd compares the counts to find out that a tensor it saved was overwritten.
    """
    tensors = [value for value in values if type(value) in COUNTED]
    if tensors:
        of_torch().count_writes(tensors)
