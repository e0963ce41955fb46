"""Pointers that are wrong, of every function."""

from __future__ import annotations

import ctypes
import mmap
import sys

import mapped_pages
import pytest

from normgrad.capi import pointers
from normgrad.capi.declarations import DIALECTS, functions_of
from normgrad.capi.signatures import Pointer

from .conftest import python_environment, run

PAGE = mmap.PAGESIZE


def test_texts(mapped):
    start = mapped(3 * PAGE)
    middle = start + PAGE
    ctypes.memmove(middle - 3, b"abcdef", 7)
    assert pointers.text(middle - 3) == b"abcdef"
    assert pointers.text(middle + 3) == b""
    ctypes.memset(start, ord("x"), 2 * PAGE)
    mapped_pages.protect(middle + PAGE, PAGE, 0)
    with pytest.raises(ValueError, match=rf"no memory at {middle + PAGE:#x} to read from, byte 9 "):
        pointers.text(middle + PAGE - 9)
    ctypes.memset(middle + PAGE - 1, 0, 1)
    assert pointers.text(middle + PAGE - 9) == b"x" * 8


def test_every_pointer_of_every_function(libraries):
    """Each is wrong in turn, while the others to plain values are right."""
    script = """
import ctypes
from normgrad.capi.declarations import DIALECTS, functions_of
from normgrad.capi.signatures import Pointer
place = ctypes.create_string_buffer(4096)
right, wrong = ctypes.addressof(place), 0x10
message = ctypes.CDLL({lib!r} + "/libascendcl.so").aclGetRecentErrMsg
message.restype = ctypes.c_char_p
for dialect in DIALECTS:
    for name in dialect.libraries:
        library = ctypes.CDLL({lib!r} + f"/lib{{name}}.so")
        for function in functions_of(name):
            call = getattr(library, function.name)
            call.argtypes, call.restype = function.arguments, function.result
            ours = {{pointer.index for pointer in function.pointers}}
            for pointer in function.pointers:
                values = [right if index in ours else 2 for index in range(len(call.argtypes))]
                values[pointer.index] = wrong
                print(function.name, pointer.name, call(*values), message().decode(), sep=" | ")
""".format(lib=str(libraries.out / "lib"))
    done = run(sys.executable, "-c", script, env=python_environment())
    assert (done.returncode, done.stderr) == (0, "")
    refused = {"acl": "107000", "aclnn": "161002", "infini": "3", "hccl": "1"}
    expected = [
        (function, pointer)
        for dialect in DIALECTS
        for library in dialect.libraries
        for function in functions_of(library)
        for pointer in function.pointers
    ]
    lines = done.stdout.splitlines()
    assert len(lines) == len(expected) > 40
    for line, (function, pointer) in zip(lines, expected, strict=True):
        name, parameter, status, text = line.split(" | ")
        assert (name, parameter) == (function.name, pointer.name)
        assert status == ("None" if function.returns.endswith("*") else refused[function.module])
        use = "write to" if pointer.is_result else "read from"
        assert text.startswith(f"{name}: {parameter}: no memory at 0x10 to {use}, byte 0 of "), text


def test_every_pointer_is_of_a_known_kind():
    """What is no handle, memory or text is looked at, as many values as there are."""
    looked_up = {
        "const aclTensor *", "aclTensor *", "aclOpExecutor *", "const aclScalar *",
        "const aclBoolArray *", "const aclIntArray *", "const aclFloatArray *",
        "const aclTensorList *", "const aclScalarList *",
        "aclrtPhysicalMemProp *", "const aclrtPhysicalMemProp *",
        "HcclRootInfo *", "const HcclRootInfo *", "const struct InfiniopDescriptor *",
        "void *", "const void *", "const char *",
    }  # fmt: skip
    for dialect in DIALECTS:
        for library in dialect.libraries:
            for function in functions_of(library):
                shown = {name for kind, name in function.parameters if kind.endswith("*")}
                known = {name for kind, name in function.parameters if kind in looked_up}
                assert {pointer.name for pointer in function.pointers} == shown - known
    counts = {
        (pointer.name, pointer.is_result): (pointer.size, pointer.count, pointer.counted_by)
        for function in (*functions_of("nnopbase"), *functions_of("infinirt"))
        for pointer in function.pointers
        if "Array" not in function.name or "Bool" in function.name
        if "List" not in function.name
    }
    assert counts["viewDims", False] == counts["stride", False] == (8, 1, 1)
    assert counts["storageDims", False] == (8, 1, 7)
    assert counts["viewDims", True] == (8, 1, None)
    assert counts["value", False] == (1, 1, 1)
    assert counts["count_array", True] == (4, 11, None)
    assert counts["ms_ptr", True] == (4, 1, None)


def test_pointers_on_one_page_and_across_its_end(mapped):
    """A page is asked for once; what reaches behind it is looked at again."""
    start = mapped(2 * PAGE)
    mapped_pages.protect(start + PAGE, PAGE, 0)
    last = start + PAGE - 8
    two = [Pointer(0, "one", True, ctypes.c_int64), Pointer(1, "other", True, ctypes.c_int64)]
    assert pointers.wrong(two, (start, last)) is None
    assert pointers.wrong(two, (None, last)) is None
    name, text = pointers.wrong(two, (start, last + 1))
    assert (name, text.split(";")[0]) == (
        "other", f"no memory at {start + PAGE:#x} to write to, byte 7 of 8"
    )  # fmt: skip
    mapped_pages.protect(start + PAGE, PAGE, mmap.PROT_READ)
    read = [Pointer(0, "one", False, ctypes.c_int64), Pointer(1, "other", True, ctypes.c_int64)]
    assert pointers.wrong(read, (start + PAGE, start + PAGE))[0] == "other"
    counted = [Pointer(0, "values", False, ctypes.c_int64, counted_by=1)]
    assert pointers.wrong(counted, (last, 1)) is None
    assert pointers.wrong(counted, (16, 0)) is None
    both = [*counted, Pointer(2, "more", False, ctypes.c_int64, counted_by=3)]
    assert pointers.wrong(both, (16, 0, 16, 1))[0] == "more"  # of no values, no page was seen
    assert pointers.wrong(counted, (16, 1))[0] == "values"
    assert pointers.wrong(counted, (16, pointers.MOST_VALUES + 1)) is None  # refused by number
