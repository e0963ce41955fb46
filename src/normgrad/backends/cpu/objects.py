"""Reading and making tensors' Python objects, and counting writes and batches, in compiled code.

NumPy's arrays are read through their C structure. PyTorch's plain tensors on the CPU are read
through the C functions that it offers to compiled models, which make new ones too, and its other
tensors through DLPack's C exchange API. ``known`` is the address of the table of
:mod:`normgrad.native`, which has this process's types and functions. The GIL is held, references
are borrowed from the caller, and failures leave no Python exception set.
"""

from __future__ import annotations

from numba import types

from ... import native
from .helpers import helper
from .intrinsics import (
    address_of,
    call,
    call_for_pointer,
    external,
    get,
    int32s_at,
    int_buffer,
    integers_at,
    not_inlined,
    plain,
    put,
    word,
)

# mypy: disable-error-code="untyped-decorator,no-untyped-def"

#: The most axes of a tensor that is read here.
MAX_RANK = native.MAX_RANK
#: The words of a tensor's signature: its dtype, type, device and rank; then its sizes and strides.
DTYPE, KIND, DEVICE, RANK, SIZES = range(5)
#: The number of words of the longest signature, and of a vector's.
SIGNATURE_MAX, VECTOR = SIZES + 2 * MAX_RANK, SIZES + 2
#: The fields of ``found``: the first element's address, the bytes of an element if the tensor is
#: PyTorch's, and NumPy's flags; and their number.
ADDRESS, BYTES, FLAGS, FOUND = range(4)
#: DLPack's code and bits of int64.
INT64 = 64 << 8
#: The number of words in DLPack's DLTensor.
DLTENSOR_WORDS = 6
#: Offsets in words: of any object's type, a tuple's length, and a weak reference's object.
TYPE, LENGTH, REFERENT = 1, 2, 2

long_value, long_from = external("PyLong_AsLongLong"), external("PyLong_FromLongLong")
float_value = external("PyFloat_AsDouble", types.float64)
bytes_from = external("PyBytes_FromStringAndSize")
retain, release = external("Py_IncRef"), external("Py_DecRef")
# Python 3.10's library exports no function for a call with one argument.
call_object, call_nothing = external("PyObject_VectorcallDict"), external("PyObject_CallNoArgs")
new_tuple, set_entry = external("PyTuple_New"), external("PyTuple_SetItem", types.int32)
list_entry = external("PyList_GetItem")
set_list_entry = external("PyList_SetItem", types.int32)
refer = external("PyWeakref_NewRef")
find = external("PyDict_GetItemWithError")
attribute, size_of = external("PyObject_GetAttr"), external("PyObject_Size")
allocate, free = external("PyMem_RawMalloc"), external("PyMem_RawFree")
clear_error, set_error = external("PyErr_Clear"), external("PyErr_SetObject")
is_error = external("PyErr_ExceptionMatches", types.int32)
raised = external("PyErr_Occurred")
copy_bytes = external("memmove")
#: These turn the garbage collector off and on; the first returns whether it was on.
stop_collector = external("PyGC_Disable", types.int32)
start_collector = external("PyGC_Enable", types.int32)
#: The release of the GIL, and its taking, with the state that the release returned.
let_others_run, come_back = external("PyEval_SaveThread"), external("PyEval_RestoreThread")


@helper
def is_tuple(known, value):
    """Whether an object is a tuple, and not of a derived class."""
    return word(value, TYPE) == word(known, native.TUPLE)


@helper
def entry(known, values, index):
    """An entry of a tuple, as a borrowed reference."""
    return word(values + word(known, native.TUPLE_ENTRIES), index)


@helper
def release_all(values, count):
    """Release an array of references."""
    for index in range(count):
        release((get(values, index),))


@helper
def tuple_of(values, count):
    """A tuple of an array of references, which it takes over; 0 if Python raised an exception.

    All values are there before the tuple is, and no code runs before it is filled. Other code may
    find every tuple (``gc.get_objects()``), and Python fills none that others hold.
    """
    made = new_tuple((count,))
    if made == 0:
        release_all(values, count)
        return made
    filled = True
    for index in range(count):
        # It takes the reference over where it fails, too.
        filled &= set_entry((made, index, get(values, index))) == 0
    if not filled:
        release((made,))
        return plain(0)
    return made


@helper
def integer(value):
    """The value of an object that is an integer of 64 bits, or -1."""
    number = long_value((value,))
    if number == -1 and raised(()) != 0:
        clear_error(())
    return number


@helper
def read_plain(known, value, read):
    """Read a tensor into a DLTensor if it is a plain one on the CPU; returns whether it did.

    A tensor is plain if its dispatch keys are a plain tensor's. PyTorch's functions for compiled
    models then read it faster than DLPack's.
    """
    implementation = word(value, word(known, native.IMPLEMENTATION))
    if word(implementation, word(known, native.KEYS)) != word(known, native.PLAIN):
        return False
    # The functions take a handle: the address of a word with the implementation's address.
    handle, room, fields = int_buffer(1), int_buffer(2), address_of(read)
    put(handle, 0, implementation)
    put(room, 1, 0)
    if (
        call(word(known, native.RANK), (handle, room)) != 0
        or call(word(known, native.DTYPE), (handle, address_of(room) + 8)) != 0
        or call(word(known, native.DATA), (handle, fields + 8 * native.DL_DATA)) != 0
        or call(word(known, native.SIZES), (handle, fields + 8 * native.DL_SIZES)) != 0
        or call(word(known, native.STRIDES), (handle, fields + 8 * native.DL_STRIDES)) != 0
    ):
        return False
    number = get(room, 1)
    if number >= native.DTYPE_NUMBERS or word(known, native.DTYPES + number) == 0:
        return False
    put(read, native.DL_DEVICE, native.CPU)
    put(read, native.DL_DTYPE_AND_RANK, word(known, native.DTYPES + number) | get(room, 0))
    put(read, native.DL_OFFSET, 0)
    return True


@helper
def describe(known, value, words, at, found):
    """Append the signature of a tensor or None to ``words``; returns their new number, or -1.

    ``found`` gets the address, and other fields that are not compared. -1 means that the object has
    a type that is not read here, or is on a device that is not the CPU or a CUDA device.
    """
    not_inlined()
    kind = word(value, TYPE)
    put(found, ADDRESS, 0)
    put(found, FLAGS, native.ARRAY_WRITEABLE)
    device = plain(native.CPU)
    if value == word(known, native.NONE):
        put(words, at, 0)
        return at + 1
    if kind == word(known, native.NDARRAY):
        rank = get(int32s_at(value), native.ARRAY_RANK)
        sizes, strides = word(value, native.ARRAY_SIZES), word(value, native.ARRAY_STRIDES)
        put(words, at + DTYPE, word(word(value, native.ARRAY_DTYPE), native.DESCRIPTION))
        put(found, ADDRESS, word(value, native.ARRAY_DATA))
        put(found, FLAGS, get(int32s_at(value), native.ARRAY_FLAGS))
    elif kind != 0 and (
        kind == word(known, native.TENSOR) or kind == word(known, native.PARAMETER)
    ):
        read = int_buffer(DLTENSOR_WORDS)
        if not read_plain(known, value, read) and (
            call(word(known, native.READ_TENSOR), (value, read)) != 0
        ):
            clear_error(())
            return -1
        kind = word(known, native.TENSOR)  # a Parameter has the same memory
        device = get(read, native.DL_DEVICE)
        if device != native.CPU and device & 0xFFFFFFFF != native.CUDA:
            return -1
        dtype = get(read, native.DL_DTYPE_AND_RANK)
        rank = dtype & 0xFFFFFFFF
        sizes, strides = get(read, native.DL_SIZES), get(read, native.DL_STRIDES)
        put(words, at + DTYPE, dtype)
        put(found, ADDRESS, get(read, native.DL_DATA) + get(read, native.DL_OFFSET))
        put(found, BYTES, (dtype >> 40 & 0xFF) >> 3)
    else:
        return -1
    if rank > MAX_RANK:
        return -1
    put(words, at + KIND, kind)
    put(words, at + DEVICE, device)
    put(words, at + RANK, rank)
    at += SIZES
    for axis in range(rank):
        put(words, at + axis, word(sizes, axis))
        put(words, at + rank + axis, word(strides, axis))
    return at + 2 * rank


@helper
def length_of(words):
    """The number of words of the signature of a tensor or None at an address."""
    return 1 if word(words, 0) == 0 else SIZES + 2 * word(words, RANK)


@helper
def holds_all(known, value, words, at, size):
    """Whether a tensor's storage holds all elements of its signature, with the tensor's values.

    A storage may have been resized under its tensor, and a negating view differs from its memory.
    """
    not_inlined()
    if get(words, at) == 0 or get(words, at + KIND) == word(known, native.NDARRAY):
        return True
    implementation = word(value, word(known, native.IMPLEMENTATION))
    if word(implementation, word(known, native.KEYS)) & word(known, native.NEGATES):
        return False
    handle, room = int_buffer(1), int_buffer(2)
    put(handle, 0, implementation)
    if (
        call(word(known, native.STORAGE_SIZE), (handle, room)) != 0
        or call(word(known, native.STORAGE_OFFSET), (handle, address_of(room) + 8)) != 0
    ):
        return False
    last, rank = 0, get(words, at + RANK)
    for axis in range(rank):
        count = get(words, at + SIZES + axis)
        if count == 0:
            return True
        last += (count - 1) * get(words, at + SIZES + rank + axis)
    return (get(room, 1) + last + 1) * size <= get(room, 0)


@helper
def count_write(known, value):
    """Count for autograd that an array or a tensor was written to; returns whether that was done.

    It is for plain tensors on the CPU alone, and not for those without a count: they were made in
    inference mode, and PyTorch's function would throw.
    """
    kind = word(value, TYPE)
    if value == word(known, native.NONE) or kind == word(known, native.NDARRAY):
        return True
    if word(known, native.COUNT) == 0 or (
        kind != word(known, native.TENSOR) and kind != word(known, native.PARAMETER)
    ):
        return False
    handle, implementation = int_buffer(1), word(value, word(known, native.IMPLEMENTATION))
    if (
        word(implementation, word(known, native.KEYS)) != word(known, native.PLAIN)
        or word(implementation, word(known, native.COUNTER)) == 0
    ):
        return False
    put(handle, 0, implementation)
    call(word(known, native.COUNT), (handle,))
    return True


@helper
def may_be_included(known, key):
    """Whether this thread includes a dispatch key of PyTorch's, or compiled code cannot tell."""
    includes = word(known, native.INCLUDES)
    return includes == 0 or call(includes, (key,)) & 0xFF != 0


@helper
def may_be_dispatched(known):
    """Whether a mode or transform of PyTorch's may have to see what is done to tensors."""
    return may_be_included(known, word(known, native.MODES)) or may_be_included(
        known, word(known, native.TRANSFORMS)
    )


@helper
def makes_tensors(known):
    """Whether compiled code may make new tensors."""
    return word(known, native.WRAP) != 0 and not may_be_dispatched(known)


@helper
def is_watched(known):
    """Whether a mode, transform or tracer of PyTorch's may have to see operators."""
    return (
        word(known, native.FUNCTION_MODES) == 0
        or call(word(known, native.FUNCTION_MODES), ()) & 0xFF != 0
        or may_be_dispatched(known)
        or may_be_included(known, word(known, native.TRACER))
        or may_be_included(known, word(known, native.PRE_DISPATCH))
    )


@helper
def new_tensor(known, words):
    """A new PyTorch tensor on the CPU with the signature at an address; 0 if it cannot be made."""
    not_inlined()
    handle, rank, number = int_buffer(1), word(words, RANK), plain(0)
    dtype, sizes = word(words, DTYPE) & ~0xFFFFFFFF, words + 8 * SIZES
    while number < native.DTYPE_NUMBERS and word(known, native.DTYPES + number) != dtype:
        number += 1
    new, strides = word(known, native.NEW), sizes + 8 * rank
    if number == native.DTYPE_NUMBERS or (
        call(new, (rank, sizes, strides, number, 0, 0, handle)) != 0
    ):
        return 0
    made = call_for_pointer(word(known, native.WRAP), (get(handle, 0),))
    call(word(known, native.DROP), (get(handle, 0),))
    if made == 0:
        clear_error(())
    return made


@helper
def add_one(known, value):
    """Add 1 to a plain PyTorch tensor that is one int64; returns whether that was done."""
    words, found = int_buffer(SIGNATURE_MAX), int_buffer(FOUND)
    if (
        describe(known, value, words, plain(0), found) != SIZES
        or word(value, TYPE) != word(known, native.TENSOR)
        or get(words, DEVICE) != native.CPU
        or get(words, DTYPE) >> 32 & 0xFFFF != INT64
        or is_watched(known)
        or not holds_all(known, value, words, plain(0), get(found, BYTES))
        or not count_write(known, value)
    ):
        return False
    number = integers_at(get(found, ADDRESS))
    put(number, 0, get(number, 0) + 1)
    return True


@helper
def is_vector(known, value, words, found):
    """Describe a PyTorch tensor; returns whether it is a vector on the CPU without gaps."""
    not_inlined()
    return (
        describe(known, value, words, plain(0), found) == VECTOR
        and word(value, TYPE) == word(known, native.TENSOR)
        and get(words, DEVICE) == native.CPU
        and get(words, SIZES + 1) == 1
        and holds_all(known, value, words, plain(0), get(found, BYTES))
    )


@helper
def copy_of(known, make, value):
    """A new tensor with the values of a PyTorch tensor, which is a vector without gaps; else 0.

    ``make`` is a function of Python's that makes a tensor like its argument.
    """
    not_inlined()
    words, others = int_buffer(SIGNATURE_MAX), int_buffer(SIGNATURE_MAX)
    found, copied, argument = int_buffer(FOUND), int_buffer(FOUND), int_buffer(1)
    if not is_vector(known, value, words, found):
        return 0
    made, alike = new_tensor(known, address_of(words)) if makes_tensors(known) else 0, True
    if made == 0:
        put(argument, 0, value)
        made = call_object((make, argument, 1, 0))
        # It may have replaced the tensor's memory.
        alike = is_vector(known, value, words, found)
    if made == 0:
        clear_error(())
        return 0
    alike = alike and describe(known, made, others, plain(0), copied) == VECTOR
    for index in range(VECTOR if alike else 0):
        alike = alike and get(words, index) == get(others, index)
    if not alike:
        release((made,))
        return 0
    size = get(words, SIZES) * get(found, BYTES)
    copy_bytes((get(copied, ADDRESS), get(found, ADDRESS), size))
    return made
