"""The table of addresses and offsets with which compiled code reads and makes tensors' objects.

The addresses are valid in this process only. The field of a type is 0, which is not an address, if
PyTorch lacks the functions that read its tensors, or if NumPy's arrays do not have the usual
layout. Python code then reads the tensors, as it reads all those of types that compiled code does
not know. If no object of Python's has the usual layout, ``TUPLE`` is 0 too, and compiled code is
never asked.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt

from . import dlpack

#: The largest number of axes of a tensor that compiled code reads; operators take no more.
MAX_RANK = 8

# The fields of the table, int64 each.
(
    NONE, TRUE, TUPLE, TUPLE_ENTRIES, BOOL, FLOAT, INT, HASH,
    NDARRAY, TENSOR, PARAMETER, READ_TENSOR, STORAGE_SIZE, STORAGE_OFFSET,
    IMPLEMENTATION, KEYS, NEGATES, TEAM, BYTES, ENTER_HOOK, EXIT_HOOK, CALLS,
    PLAIN, RANK, DTYPE, DATA, SIZES, STRIDES, NEW, DROP, WRAP, INCLUDES, MODES, TRANSFORMS,
    FUNCTION_MODES, TRACER, PRE_DISPATCH, COUNT, COUNTER, WRITTEN, EXCEPTION,
    DTYPES,
) = range(42)  # fmt: skip
#: The number of fields from DTYPES on. Each of PyTorch's numbers of dtypes has one: DLPack's word
#: of that dtype, with rank 0; or 0 for a dtype that is read through DLPack.
DTYPE_NUMBERS = 64
FIELDS = DTYPES + DTYPE_NUMBERS

#: The names of the attributes in which Triton has its hooks, a chain of calls each.
_HOOKS = {ENTER_HOOK: "launch_enter_hook", EXIT_HOOK: "launch_exit_hook", CALLS: "calls"}

# Offsets in NumPy's PyArrayObject, whose fields are public in C, in words of 8 bytes or, where
# marked, in half words. The second word of every object is its type.
ARRAY_DATA, ARRAY_SIZES, ARRAY_STRIDES, ARRAY_DTYPE = 2, 4, 5, 7
ARRAY_RANK, ARRAY_FLAGS = 6, 16  # half words
ARRAY_FLAT, ARRAY_WRITEABLE = 0x1, 0x400
# The word of NumPy's PyArray_Descr that says what a dtype is: its kind, character and byte order,
# each a character, and its number in the upper half. Equal dtypes may be several objects, as
# unpickled ones are, and the memory of one that is freed becomes another's.
DESCRIPTION = 3

# Offsets in DLPack's DLTensor, in words. A device is its type, here the CPU's or CUDA's, in the
# lower half of the word, and its number in the upper one.
DL_DATA, DL_DEVICE, DL_DTYPE_AND_RANK, DL_SIZES, DL_STRIDES, DL_OFFSET = range(6)
CPU, CUDA = 1, 2

# The offset in DLPack's DLPackExchangeAPI, in words, of the function that reads a tensor. The first
# half word is the major version.
EXCHANGE_READ = 5

#: The bytes of an object's reference count and type, in Python's usual build.
_HEADER = 16
#: The word of a bytes object that has its hash, once that is known.
_BYTES_HASH = 3

#: How many words of a TensorImpl are searched; PyTorch's has 24.
_IMPLEMENTATION_WORDS = 24

#: PyTorch's C functions for compiled models; they take a tensor's handle, the address of a word
#: with the TensorImpl's address.
_FUNCTIONS = {
    STORAGE_SIZE: "aoti_torch_get_storage_size",
    STORAGE_OFFSET: "aoti_torch_get_storage_offset",
    RANK: "aoti_torch_get_dim",
    DTYPE: "aoti_torch_get_dtype",
    DATA: "aoti_torch_get_data_ptr",
    SIZES: "aoti_torch_get_sizes",
    STRIDES: "aoti_torch_get_strides",
    NEW: "aoti_torch_empty_strided",
    DROP: "aoti_torch_delete_tensor_object",
}
#: PyTorch's C++ functions that count that a tensor was written to, that make a tensor's Python
#: object from its handle, and that say whether there is a mode for functions, and whether this
#: thread includes a dispatch key. Where one is missing, functions of Python's do the same.
_CPP_FUNCTIONS = {
    COUNT: "_ZN5torch8autograd4impl12bump_versionERKN2at6TensorE",
    WRAP: "_Z16THPVariable_WrapRKN2at10TensorBaseE",
    FUNCTION_MODES: "_ZN2at4impl27torch_function_mode_enabledEv",
    INCLUDES: "_ZN3c104impl28tls_is_dispatch_key_includedENS_11DispatchKeyE",
}

#: The dtypes whose plain tensors are read through these functions.
_DTYPES = "float32", "float64", "float16", "bfloat16", "uint8", "int32", "int64"


#: A plan that compiled code can run: the address of its table, the makers of results, weak
#: references to outputs and workspaces of earlier calls, and objects to keep alive.
Ready = tuple[int, tuple[Callable[[Any], Any] | None, ...], list[Any], Any]

#: The table.
known: npt.NDArray[np.int64] = np.zeros(FIELDS, np.int64)


def _find_python() -> None:
    if object.__basicsize__ != _HEADER or ctypes.sizeof(ctypes.c_void_p) != 8:
        return
    array = np.zeros((2, 3), np.float32)[:, ::2]
    words = (ctypes.c_int64 * 8).from_address(id(array))
    halves = (ctypes.c_int32 * (ARRAY_FLAGS + 1)).from_address(id(array))
    dtypes = [np.dtype(name) for name in ("<f4", ">f4", np.uint8, np.int64)]
    as_said = (
        np.ndarray.__basicsize__ >= 4 * (ARRAY_FLAGS + 1)
        and (words[1], words[ARRAY_DATA]) == (id(np.ndarray), array.ctypes.data)
        and (halves[ARRAY_RANK], halves[ARRAY_FLAGS]) == (array.ndim, array.flags.num)
        and words[ARRAY_DTYPE] == id(array.dtype)
        and tuple((ctypes.c_int64 * 2).from_address(words[ARRAY_SIZES])) == array.shape
        and tuple((ctypes.c_int64 * 2).from_address(words[ARRAY_STRIDES])) == array.strides
        and all(_is_described(dtype) for dtype in dtypes)
    )
    known[NONE], known[TRUE] = id(None), id(True)
    known[TUPLE], known[TUPLE_ENTRIES] = id(tuple), tuple.__basicsize__
    known[BOOL], known[FLOAT], known[INT] = id(bool), id(float), id(int)
    known[EXCEPTION] = id(Exception)
    some = bytes(range(8))
    number = hash(some)
    found = ctypes.c_int64.from_address(id(some) + 8 * _BYTES_HASH).value == number
    known[HASH] = _BYTES_HASH if found else 0
    known[list(_HOOKS)] = [*map(id, _HOOKS.values())]
    known[NDARRAY], known[BYTES] = id(np.ndarray) if as_said else 0, _description(dtypes[2])


def _description(dtype: np.dtype[Any]) -> int:
    return ctypes.c_int64.from_address(id(dtype) + 8 * DESCRIPTION).value


def _is_described(dtype: np.dtype[Any]) -> bool:
    """Whether a dtype's word DESCRIPTION has what it should."""
    characters = (dtype.kind + dtype.char + dtype.byteorder).encode()
    found = _description(dtype).to_bytes(8, sys.byteorder)
    return found[:3] == characters and int.from_bytes(found[4:], sys.byteorder) == dtype.num


def find_torch(torch: Any) -> None:
    """Fill in the table's fields on PyTorch's tensors, if this version supports them."""
    with suppress(AttributeError, BufferError, OSError, RuntimeError, TypeError, ValueError):
        capsule = torch.Tensor.__dlpack_c_exchange_api__
        exchange = dlpack.get_pointer(capsule, b"dlpack_exchange_api")
        major = ctypes.c_uint32.from_address(exchange).value
        read = ctypes.c_void_p.from_address(exchange + 8 * EXCHANGE_READ).value
        if major != 1 or not read or not known[TUPLE]:
            return
        # The symbols of the libraries that it needs are found too; ctypes unloads none of them.
        library = ctypes.CDLL(torch._C.__file__)
        for field, name in _FUNCTIONS.items():
            known[field] = ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0
        known[IMPLEMENTATION], known[KEYS], known[NEGATES], known[PLAIN] = _layout(torch)
        known[COUNTER] = _counter(torch)
        known[READ_TENSOR] = read
        keys = torch._C.DispatchKey
        known[MODES], known[TRANSFORMS] = int(keys.Python), int(keys.FuncTorchDynamicLayerFrontMode)
        known[TRACER] = int(torch._C._dispatch_key_parse("Tracer"))
        known[PRE_DISPATCH] = int(keys.PreDispatch)
        for field, name in _CPP_FUNCTIONS.items():
            function: Any = getattr(library, name, None)
            known[field] = ctypes.cast(function, ctypes.c_void_p).value or 0
        for dtype in _DTYPES:
            number, word = _numbers(torch.zeros((), dtype=getattr(torch, dtype)))
            known[DTYPES + number] = word
        # These come last: compiled code reads no tensor before it knows the types.
        known[TENSOR], known[PARAMETER] = id(torch.Tensor), id(torch.nn.Parameter)


def _numbers(scalar: Any) -> tuple[int, int]:
    """PyTorch's number of a scalar's dtype, and DLPack's word of that dtype, with rank 0.

    Raises:
        ValueError: one of them cannot be read.
    """
    handle, number = ctypes.c_void_p(scalar._cdata), ctypes.c_int32(-1)
    kind = ctypes.PYFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p)
    words = (ctypes.c_int64 * (DL_OFFSET + 1))()
    failed = kind(int(known[DTYPE]))(ctypes.addressof(handle), ctypes.addressof(number))
    failed |= kind(int(known[READ_TENSOR]))(id(scalar), ctypes.addressof(words))
    if failed or not 0 <= number.value < DTYPE_NUMBERS:
        raise ValueError(f"dtype {number.value} cannot be read")
    return number.value, words[DL_DTYPE_AND_RANK]


def _layout(torch: Any) -> tuple[int, int, int, int]:
    """Find the words at which PyTorch keeps what compiled code needs, by reading trial tensors.

    Returns:
        The word of the TensorImpl's address in a tensor's object, the word of the dispatch keys in
        the TensorImpl, the mask of the keys' bit that marks a negated view, and the keys of a plain
        tensor on the CPU.

    Raises:
        ValueError: the trial tensors do not determine them.
    """
    plain = torch.zeros(2, 3)
    tensors = plain, torch._neg_view(plain), torch.nn.Parameter(plain), torch.zeros(4).double()
    keys = [torch._C._dispatch_keys(tensor).raw_repr() for tensor in tensors]
    places = set(range(2, torch.Tensor.__basicsize__ // 8))
    words = set(range(_IMPLEMENTATION_WORDS))
    for tensor, key in zip(tensors, keys, strict=True):
        held = (ctypes.c_uint64 * (max(places) + 1)).from_address(id(tensor))
        places = {place for place in places if held[place] == tensor._cdata}
        impl = (ctypes.c_uint64 * _IMPLEMENTATION_WORDS).from_address(tensor._cdata)
        words = {word for word in words if impl[word] == key}
    (place,), (word,), negates = places, words, keys[0] ^ keys[1]
    if negates.bit_count() != 1:
        raise ValueError("no one bit says that a view negates")
    return place, word, negates, keys[0]


def _counter(torch: Any) -> int:
    """Find the word at which PyTorch's TensorImpl keeps the address of a tensor's count of writes.

    It is the only one that a tensor and its view share, and that tensors of inference mode lack.

    Raises:
        ValueError: the trial tensors do not determine it.
    """
    with torch.inference_mode():
        inference = torch.zeros(2, 3), torch.zeros(4)
    plain = torch.zeros(2, 3)
    kinds = [(plain, plain.view(3, 2)), (plain.double(), torch.nn.Parameter(plain)), inference]
    (base, view), others, without = (
        [(ctypes.c_uint64 * _IMPLEMENTATION_WORDS).from_address(each._cdata)[:] for each in kind]
        for kind in kinds
    )
    (found,) = (
        index
        for index in range(_IMPLEMENTATION_WORDS)
        if base[index] == view[index] != 0
        and all(words[index] for words in others)
        and not any(words[index] for words in without)
    )
    return found


def nothing_known(*arguments: Any) -> Any:
    """Answer as compiled code does if it cannot read the arguments."""
    return None


#: The compiled function that computes a call from plans by key, the tensors, ``out`` and the other
#: arguments. It returns the results, or None if no plan matches the call, or if results cannot be
#: made: Python then does the same with all checks, and raises the errors. With a single plan in the
#: place of the plans by key, the fourth argument is the workspace or None, and a Team may follow.
#: With None in their place it returns the call's key as bytes, or None if it cannot read some
#: argument. With plans by key, a fifth argument of any value asks for None also where a mode,
#: transform or tracer of PyTorch's may have to see operators, and leaves writes to ``out``
#: uncounted, as PyTorch's batch norm does. Interrupts, and errors of a run that Python did,
#: propagate. The first plan that is run sets it.
answer: Callable[..., Any] = nothing_known

#: The compiled function that copies a tuple of PyTorch tensors, of one axis each and without gaps.
#: Its second argument makes a tensor like another. It returns None if it cannot copy one of them.
#: It is for tensors whose memory kernels may read, and set as ``answer`` is.
copies: Callable[[tuple[Any, ...], Callable[[Any], Any]], tuple[Any, ...] | None] = nothing_known

#: The compiled function that adds 1 to a PyTorch tensor, which is one int64, in place. It returns
#: True; or None if it did nothing, as where a mode must see it. It is set as ``answer`` is.
add_one: Callable[[Any], bool | None] = nothing_known

_find_python()
