"""A common interface to NumPy arrays, PyTorch tensors and DLPack producers.

Each framework has a class. None of them imports PyTorch: it is looked up among the loaded modules,
since a caller that has a tensor has loaded it.
"""

from __future__ import annotations

import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from functools import cache
from typing import Any

import numpy as np

from . import devices, dlpack, dtypes, layout, memory, native, pages
from .dlpack import KINDS
from .dtypes import DType
from .tensor import TensorSpec

#: A call's signature (the GPU's number, then shapes, strides and dtypes in the framework's terms),
#: the addresses of its tensors, and the bytes from each to the end of the memory; 0 for None.
Look = tuple[Hashable, list[int], list[int]]


class Framework(ABC):
    """The interface of a framework. ``value`` is always one of its own tensors."""

    name: str

    @abstractmethod
    def opened(self, name: str, value: Any, writing: bool) -> Any:
        """The tensor in the form that the other methods take, which is mostly the tensor itself.

        Raises:
            TypeError: a tensor of a sort that no operator takes.
            ValueError: a tensor that can only be read as a copy, but is to be written.
        """

    def copied(self, value: Any, opened: Any) -> layout.Region | None:
        """The original memory of a tensor that :meth:`opened` copied; None if it did not."""
        return None

    @abstractmethod
    def device(self, name: str, value: Any) -> str:
        """The device of the tensor, such as "cpu" or "cuda:0"."""

    def look(self, values: Sequence[Any], given: Sequence[Any]) -> Look | None:
        """Read all inputs and outputs in one pass, which is most of the cost of a small call.

        The result is None unless all are plain tensors of this framework on one GPU.
        """
        return None

    @abstractmethod
    def spec(self, name: str, value: Any, allowed: Sequence[DType]) -> TensorSpec:
        """The tensor's :class:`TensorSpec`.

        Raises:
            TypeError: a dtype that no :class:`TensorSpec` has; the message names those allowed.
        """

    def described(self, name: str, value: Any, allowed: Sequence[DType]) -> TensorSpec:
        """The spec of a tensor on any device, without access to its data.

        Raises:
            TypeError: a dtype, or a sort of tensor, that no operator takes.
        """
        return self.spec(name, self.opened(name, value, writing=False), allowed)

    @abstractmethod
    def address(self, name: str, value: Any) -> int:
        """The address of the first element.

        Raises:
            TypeError: a tensor without memory of its own (a fake or a batched tensor).
        """

    def contiguous_bytes(self, value: Any) -> int | None:
        """The size in bytes of an opened tensor of any dtype; None if it is not contiguous.

        NumPy's arrays are read as buffers instead.
        """
        raise NotImplementedError

    @abstractmethod
    def unwritable(self, value: Any, first: int, end: int) -> str | None:
        """The reason why writing to the tensor would fail or have no effect; None if it works."""

    def unreadable(self, value: Any, first: int, end: int) -> str | None:
        """The reason why reading the tensor would fail; None if it works.

        Only frameworks whose tensors may describe memory wrongly check it.
        """
        return None

    @abstractmethod
    def empty(self, spec: TensorSpec) -> Any:
        """A new tensor on the CPU, opened."""

    def maker(self, spec: TensorSpec, alike: bool) -> Callable[[Any], Any]:
        """A function that makes new tensors with this spec on the CPU, from one of the caller's.

        ``alike`` says whether that tensor has the same spec.
        """
        return lambda like: self.empty(spec)

    def empty_on(self, spec: TensorSpec, device: str, like: Any) -> Any:
        """A new tensor on a GPU, opened; ``like`` is one of the caller's tensors there."""
        raise NotImplementedError

    def result(self, value: Any, like: Any) -> Any:
        """Convert an opened result to what the caller gets; ``like`` is one of the caller's."""
        return value

    def wrote(self, values: Sequence[Any]) -> None:  # noqa: B027 - most frameworks keep no count
        """Tell the framework that these tensors of the caller were written to."""


def _whole_strides(array: Any) -> bool:
    """Whether all strides are multiples of the item size; a record's field may have others."""
    return all(
        step % array.itemsize == 0
        for step, size in zip(array.strides, array.shape, strict=True)
        if size > 1
    )


def _has_gaps(spec: TensorSpec) -> bool:
    """Whether a tensor's elements have gaps between them, which no framework's copy would have."""
    return layout.dense_like(spec.shape, spec.strides) != spec.strides


class NumPy(Framework):
    """numpy.ndarray. An input whose strides are not multiples of the item size is copied."""

    name = "NumPy array"

    def opened(self, name: str, value: Any, writing: bool) -> Any:
        # The attribute np.ma would import the module. If it is not loaded, the array is not masked.
        if isinstance(value, getattr(sys.modules.get("numpy.ma"), "MaskedArray", ())):
            raise TypeError(f"{name}: a masked array; allowed: {KINDS}, without a mask")
        # A plain array, without the overrides of a subclass.
        array = np.asarray(value)
        if not writing and dtypes.from_numpy(array.dtype) and not _whole_strides(array):
            try:
                return np.array(array)
            except MemoryError:
                raise memory.missing(name, array.nbytes) from None
        return array

    def copied(self, value: Any, opened: Any) -> layout.Region | None:
        array = np.asarray(value)
        if array.ctypes.data == opened.ctypes.data:
            return None
        # The strides are not multiples of the item size, so the region is described in bytes.
        by_bytes = (*array.shape, array.itemsize), (*array.strides, 1)
        return layout.Region(array.ctypes.data, *by_bytes, 1)

    def device(self, name: str, value: Any) -> str:
        return devices.CPU

    def spec(self, name: str, value: Any, allowed: Sequence[DType]) -> TensorSpec:
        dtype = dtypes.from_numpy(value.dtype)
        if dtype is None:
            shown = value.dtype if value.dtype.isnative else value.dtype.str
            raise dtypes.unsupported(name, shown, allowed)
        if not _whole_strides(value):
            raise ValueError(
                f"{name}: strides {value.strides} bytes; allowed: multiples of the item size, "
                f"{dtype.itemsize}"
            )
        strides = [step // dtype.itemsize for step in value.strides]
        return TensorSpec(value.shape, dtype, strides)

    def address(self, name: str, value: Any) -> int:
        return int(value.ctypes.data)

    def unwritable(self, value: Any, first: int, end: int) -> str | None:
        if not value.flags.writeable:
            return "a read-only array; allowed: one that can be written"
        # The flag may be wrong for memory that NumPy did not allocate.
        return pages.unwritable(first, end)

    def empty(self, spec: TensorSpec) -> Any:
        size = spec.nbytes
        flat = np.empty(size, np.uint8) if size < memory.ALIGNED else memory.aligned(size)
        strides = tuple(step * spec.dtype.itemsize for step in spec.strides)
        return np.ndarray(spec.shape, spec.dtype.numpy, buffer=flat, strides=strides)

    def maker(self, spec: TensorSpec, alike: bool) -> Callable[[Any], Any]:
        if spec.nbytes >= memory.ALIGNED or _has_gaps(spec):
            return super().maker(spec, alike)
        if alike:
            return np.empty_like
        template = self.empty(spec)  # NumPy copies its form in half the time of making one
        return lambda like: np.empty_like(template)


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
        self._plain = (torch.Tensor, torch.nn.Parameter)
        BY_TYPE.update(dict.fromkeys(self._plain, self))
        native.find_torch(torch)

    def opened(self, name: str, value: Any, writing: bool) -> Any:
        plain = self._torch.Tensor.__torch_dispatch__
        if type(value).__torch_dispatch__ is not plain:
            # Fake, distributed and other wrapping tensors have no memory of their own.
            raise TypeError(
                f"{name}: a {type(value).__name__} without memory of its own; allowed: {KINDS}"
            )
        with self._torch._C.DisableTorchFunctionSubclass():
            self._check_strided(name, value)
            value = self._bare(value)
        with suppress(RuntimeError):  # a batched tensor has no storage; address() refuses it
            reason = self.lacking(value)
            if reason is not None:
                raise ValueError(f"{name}: {reason}")
        if value.is_neg():
            if writing:
                raise ValueError(f"{name}: a view that negates; allowed: a plain tensor")
            with memory.allocating(name, value.nbytes):
                return value.resolve_neg()
        return value

    def _bare(self, value: Any) -> Any:
        """The same tensor as a torch.Tensor, since a subclass may redefine data_ptr()."""
        if type(value) in self._plain:
            return value
        with self._torch._C.DisableTorchFunctionSubclass():
            return self._torch.Tensor.as_subclass(value, self._torch.Tensor)

    def lacking(self, value: Any) -> str | None:
        """The message on a storage too small for the tensor's elements; None if it is not."""
        if 0 in value.shape:
            return None
        _, last = layout.extent(value.shape, value.stride())
        room, needed = self._room(value), (last + 1) * value.itemsize
        return None if room >= needed else memory.lacking(room, needed)

    def _room(self, value: Any) -> int:
        """The bytes from a tensor's first element to the end of its storage."""
        size: int = value.untyped_storage().nbytes()
        return size - value.storage_offset() * value.itemsize  # type: ignore[no-any-return]

    def copied(self, value: Any, opened: Any) -> layout.Region | None:
        value = self._bare(value)
        if not value.is_neg():
            return None
        return layout.Region(value.data_ptr(), value.shape, value.stride(), value.itemsize)

    def _check_strided(self, name: str, value: Any) -> None:
        if value.is_nested:
            raise TypeError(f"{name}: a nested tensor; allowed: one with a shape")
        if isinstance(value, self._torch.nn.parameter.UninitializedTensorMixin):
            raise TypeError(f"{name}: an uninitialized parameter; allowed: one with a shape")
        if value.layout is not self._torch.strided:
            raise TypeError(f"{name}: a tensor with layout {value.layout}; allowed: torch.strided")

    def described(self, name: str, value: Any, allowed: Sequence[DType]) -> TensorSpec:
        with self._torch._C.DisableTorchFunctionSubclass():
            self._check_strided(name, value)
            return self.spec(name, value, allowed)

    def device(self, name: str, value: Any) -> str:
        with self._torch._C.DisableTorchFunctionSubclass():
            return devices.CPU if value.is_cpu else str(value.device)

    def look(self, values: Sequence[Any], given: Sequence[Any]) -> Look | None:
        plain = self._plain
        gpu = -1
        key: list[Any] = [gpu]
        addresses: list[int] = []
        rooms: list[int] = []
        for value in (*values, *given):
            if value is None:
                key.append(None)
                addresses.append(0)
                rooms.append(0)
            elif type(value) in plain and value.is_cuda and not value.is_neg():
                if value.get_device() != gpu:
                    if gpu >= 0:
                        return None
                    key[0] = gpu = value.get_device()
                key += value.shape, value.stride(), value.dtype
                addresses.append(value.data_ptr())
                rooms.append(self._room(value))
            else:
                return None
        return tuple(key), addresses, rooms

    def spec(self, name: str, value: Any, allowed: Sequence[DType]) -> TensorSpec:
        dtype = self._from_torch.get(value.dtype)
        if dtype is None:
            raise dtypes.unsupported(name, str(value.dtype).removeprefix("torch."), allowed)
        return TensorSpec(value.shape, dtype, value.stride())

    def address(self, name: str, value: Any) -> int:
        try:
            return value.data_ptr()  # type: ignore[no-any-return]
        except RuntimeError as error:
            raise TypeError(
                f"{name}: a {type(value).__name__} without memory of its own ({error}); allowed: "
                f"{KINDS}"
            ) from None

    def contiguous_bytes(self, value: Any) -> int | None:
        return int(value.nbytes) if value.is_contiguous() else None

    def unwritable(self, value: Any, first: int, end: int) -> str | None:
        # PyTorch allocates a GPU's memory itself, and the system cannot probe its pages.
        return pages.unwritable(first, end) if value.is_cpu else None

    def empty(self, spec: TensorSpec) -> Any:
        dtype = self._to_torch[spec.dtype]
        with memory.allocating("a result", spec.nbytes):
            new = self._torch.empty_strided(spec.shape, spec.strides, dtype=dtype, device=self._cpu)
        self._plainly(new)
        if spec.nbytes >= pages.HUGE:
            pages.prefer_huge(new.data_ptr(), spec.nbytes)
        return new

    def maker(self, spec: TensorSpec, alike: bool) -> Callable[[Any], Any]:
        if spec.nbytes >= pages.HUGE or _has_gaps(spec):
            return super().maker(spec, alike)
        if alike:
            return self._torch.empty_like  # type: ignore[no-any-return]
        # In a layer PyTorch reads a template, which needs no memory, 1.5 µs faster than a shape,
        # strides, a dtype and a device.
        empty_like, template = self._torch.empty_like, self.empty(spec)
        template.untyped_storage().resize_(0)
        return lambda like: empty_like(template)

    def empty_on(self, spec: TensorSpec, device: str, like: Any) -> Any:
        options = {"dtype": self._to_torch[spec.dtype], "device": getattr(like, "device", device)}
        return self._plainly(self._torch.empty_strided(spec.shape, spec.strides, **options))

    def bytes_on(self, device: str, size: int) -> Any:
        """A new tensor of ``size`` bytes on a GPU."""
        return self._plainly(self._torch.empty(size, dtype=self._torch.uint8, device=device))

    def over(self, flat: Any, spec: TensorSpec) -> Any:
        """A tensor with this spec over a DLPack producer's memory of bytes."""
        flat = self._plainly(self._torch.from_dlpack(flat))
        return flat.view(self._to_torch[spec.dtype]).as_strided(spec.shape, spec.strides)

    def _plainly(self, new: Any) -> Any:
        if type(new) is not self._torch.Tensor:
            raise TypeError(
                f"new tensors are {type(new).__name__}s under the mode that is active; allowed: "
                "plain tensors, or out= for all results"
            )
        return new

    def wrote(self, values: Sequence[Any]) -> None:
        # Autograd compares version numbers to find out that a tensor it saved was overwritten.
        increment = self._torch.autograd.graph.increment_version
        try:
            increment(values)
        except RuntimeError:  # tensors made in inference mode have no version
            increment([value for value in values if not value.is_inference()])


class DLPack(Framework):
    """Any object with ``__dlpack__``; its array namespace converts results to its own type."""

    name = "DLPack producer"

    def opened(self, name: str, value: Any, writing: bool) -> Any:
        device = dlpack.device_of(name, value)
        return dlpack.open_view(name, value, device, self._stream(device))

    def described(self, name: str, value: Any, allowed: Sequence[DType]) -> TensorSpec:
        device = dlpack.device_of(name, value)
        stream = dlpack.NO_STREAM if devices.is_cuda(device) else None
        return self.spec(name, dlpack.open_view(name, value, device, stream), allowed)

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

    def spec(self, name: str, value: Any, allowed: Sequence[DType]) -> TensorSpec:
        if value.dtype is None:
            raise dtypes.unsupported(name, value.dtype_name, allowed)
        return TensorSpec(value.shape, value.dtype, value.strides)

    def address(self, name: str, value: Any) -> int:
        if isinstance(value, dlpack.View):
            return value.address
        return int(value.ctypes.data if isinstance(value, np.ndarray) else value.data_ptr())

    def contiguous_bytes(self, value: Any) -> int | None:
        dense = layout.contiguous_strides(value.shape)
        size: int = math.prod(value.shape) * value.itemsize
        follow = layout.taken(value.shape, value.strides) == layout.taken(value.shape, dense)
        return size if follow or not size else None

    def unwritable(self, value: Any, first: int, end: int) -> str | None:
        if value.read_only:
            return "read-only memory; allowed: memory that can be written"
        if value.copied:
            owner = type(value.producer).__name__
            return f"{owner} hands out a copy of its memory; allowed: memory that can be written"
        return pages.unwritable(first, end) if value.device == devices.CPU else None

    def unreadable(self, value: Any, first: int, end: int) -> str | None:
        return pages.unreadable(first, end) if value.device == devices.CPU else None

    def empty(self, spec: TensorSpec) -> Any:
        return _numpy.empty(spec)

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
        return dlpack.give_back(value, like)


#: The framework of each type of plain tensors; subclasses are not in it.
BY_TYPE: dict[type, Framework] = {}

_numpy = NumPy()
BY_TYPE[np.ndarray] = _numpy
_dlpack = DLPack()


def of(name: str, value: Any) -> Framework:
    """The framework of a tensor.

    Raises:
        TypeError: an object of no known framework.
    """
    if isinstance(value, np.ndarray):
        return _numpy
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, getattr(torch, "Tensor", ())):
        return of_torch()
    if hasattr(type(value), "__dlpack__") and not isinstance(value, (type, np.generic)):
        return _dlpack
    raise TypeError(f"{name}: a {type(value).__name__}; allowed: {KINDS}")


@cache
def of_torch() -> Torch:
    """The interface to PyTorch, which is imported unless it is loaded already."""
    import torch

    return Torch(torch)


def written(values: Sequence[Any]) -> None:
    """Tell the framework of these values, if they are plain tensors, that they were written to."""
    framework = BY_TYPE.get(type(values[0])) if values else None
    if framework is not None:
        framework.wrote(values)
