"""Programs that do everything wrong: each mistake gets its status, and a message that names it."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest

from .conftest import run

MISUSE = Path(__file__).parent / "misuse"

#: Case, status and a part of the message, in the order in which the programs make the mistakes.
EXPECTED = {
    "handles": """
        tensor null | 161001 | gradOut: null
        tensor made up | 161002 | gradOut: 0xdeadbeef, which is no handle
        tensor on the stack | 161002 | input: 0x
        tensor is its data | 161002 | input: 0x
        tensor is a mask | 161002 | weight: an aclBoolArray
        tensor is an executor | 161002 | weight: an aclOpExecutor
        mask null | 161001 | outputMask: null
        mask made up | 161002 | outputMask: 0x1, which is no handle
        mask is a tensor | 161002 | outputMask: aclTensor(
        output made up | 161002 | gradBias: 0x7fff00001000, which is no handle
        destroy tensor | 0 |
        destroy tensor twice | 161002 | tensor: a handle that aclDestroyTensor has destroyed
        tensor destroyed | 161002 | gradOut: a handle that aclDestroyTensor has destroyed
        destroy null tensor | 0 |
        destroy made up tensor | 161002 | tensor: 0x8, which is no handle
        destroy a mask as a tensor | 161002 | tensor: an aclBoolArray
        destroy mask | 0 |
        destroy mask twice | 161002 | array: a handle that aclDestroyBoolArray has destroyed
        mask destroyed | 161002 | outputMask: a handle that aclDestroyBoolArray has destroyed
        destroy null mask | 0 |
        shape of a destroyed tensor | 161002 | tensor: a handle that aclDestroyTensor has destroyed
        shape to null | 161001 | viewDims: null
        shape | 0 |
        shape is 1 2 4 of 3 | 0 |
        data type of null | 161001 | tensor: null
        format to null | 161001 | format: null
        tensor destroyed before phase 2 | 161002 | weight: it was destroyed since phase 1
        """,
    "executors": """
        phase 1 without a place for the executor | 161001 | executor: null
        phase 1 without a place for the size | 161001 | workspaceSize: null
        executor null | 161001 | executor: null
        executor null, stream made up | 161001 | executor: null
        executor made up | 161002 | executor: 0x1234, which is no handle
        executor is a tensor | 161002 | executor: an aclTensor
        executor of another operator | 161002 | executor: of aclnnBatchNormBackward
        stream made up | 361001 | stream: 0x10, which is no handle
        destroy executor | 0 |
        destroy executor twice | 161002 | executor: a handle that aclDestroyAclOpExecutor has
        executor destroyed | 161002 | executor: a handle that aclDestroyAclOpExecutor has destroyed
        repeatable null | 561103 | executor: null
        repeatable destroyed | 161002 | executor: a handle that aclDestroyAclOpExecutor has
        workspace for nothing 0 | 0 |
        executor once | 0 |
        executor twice | 161002 | executor: used already, by aclnnBatchNormBackward
        repeatable once | 0 |
        repeatable twice | 0 |
        repeatable destroyed after use | 0 |
        repeatable after that | 161002 | executor: a handle that aclDestroyAclOpExecutor has
        """,
    "memory": """
        malloc to null | 107000 | devPtr: null
        malloc of nothing | 100000 | size: 0; allowed: 1 or more
        malloc of too much | 207001 | size: 18446744073709551615 bytes
        malloc of far too much | 207001 | size: 4611686018427387903 bytes
        pointer after it 0 | 0 |
        host malloc of too much | 207001 | aclrtMallocHost: size: 18446744073709551615 bytes
        free null | 107000 | devPtr: null
        free the stack | 107000 | is in no block
        free the middle | 107000 | devPtr: 8 bytes behind the start of a block; allowed: its start
        free host memory | 107000 | devPtr: memory from aclrtMallocHost
        free device memory as the host's | 107000 | hostPtr: memory from aclrtMalloc;
        free | 0 |
        free twice | 107000 | devPtr: memory that aclrtFree has freed
        free the middle of what is freed | 107000 | devPtr: 8 bytes behind the start
        free host | 0 |
        free host twice | 107000 | hostPtr: memory that aclrtFreeHost has freed
        free host null | 107000 | hostPtr: null
        copy from what is freed | 107000 | src: memory that aclrtFree has freed
        copy to what is freed | 107000 | dst: memory that aclrtFree has freed
        set what is freed | 107000 | devPtr: memory that aclrtFree has freed
        tensor over what is freed | 161002 | weight: memory that aclrtFree has freed
        tensor whose memory was freed | 161002 | input: memory that aclrtFree has freed
        memory freed before phase 2 | 161002 | gradInput: its memory was freed by aclrtFree since
        the same again | 161002 | gradInput: its memory was freed by aclrtFree since phase 1
        free long after | 107000 | is in no block
        """,
    "copies": """
        nothing from null | 0 |
        nothing to null | 0 |
        to null | 107000 | dst: null
        from null | 107000 | src: null
        past the end of the target | 107000 | dst: 64 bytes; allowed: 32, in a block of 32
        past the end, from its middle | 107000 | dst: 32 bytes; allowed: 16, in a block of 32, from
        past the end of the source | 107000 | src: 33 bytes; allowed: 32
        past the end of host memory | 107000 | dst: 64 bytes; allowed: 32
        past destMax | 107000 | count: 36 bytes; allowed: up to destMax, 32
        a length that was negative | 107000 | dst: 18446744073709551612 bytes; allowed: 32
        device to device, to the host | 107000 | is no device memory
        device to host, from the host | 107000 | is no device memory
        host to device, the wrong way round | 107000 | is no device memory
        host to device, from the device | 107000 | src: device memory; allowed: host memory
        host to device, to a host block | 107000 | dst: host memory; allowed: device memory
        no kind | 107000 | kind: 9; allowed: ACL_MEMCPY_HOST_TO_HOST (0)
        set past the end | 107000 | devPtr: 33 bytes; allowed: 32
        set past maxCount | 107000 | count: 8 bytes; allowed: up to maxCount, 4
        set null | 107000 | devPtr: null
        set the host | 107000 | is no device memory
        asynchronous, past the end | 107000 | aclrtMemcpyAsync: dst: 64 bytes; allowed: 32
        there | 0 |
        across | 0 |
        and back | 0 |
        equal 1 | 0 |
        set 1 | 0 |
        """,
    "views": """
        fits | 0 |
        strides past the end | 161002 | input: elements 0 to 10 of its storage; allowed: 0 to 7
        strides far past the end | 161002 | input: elements 0 to 4611686018427387906
        offset past the end | 161002 | input: elements 1 to 8
        negative offset | null | offset: -1; allowed: 0 or more
        data in the middle | 161002 | input: elements 1 to 8
        negative stride | null | stride: 8, 4, -1; allowed: 0 or more
        offset beyond counting | 161002 | input: elements 9223372036854775807 to
        offset that wraps around | 161002 | input: elements 4611686018427387904 to
        memory of the host | 161002 | input: memory that is not from aclrtMalloc
        no memory, in phase 1 | 0 |
        and in phase 2 | 161002 | input: no memory; allowed: a tensor with data
        larger than its block | 161002 | input: elements 0 to 9 of its storage; allowed: 0 to 7
        more elements than there are | 161002 | elements; allowed: less than 288230376151711744
        more elements than can be written | 161002 | gradOut: 1000 axes; allowed on
        negative size | null | viewDims: (1, -2, 4) has a negative size
        no sizes | null | viewDims: null
        absurd rank | null | viewDims: 18446744073709551615 of them; allowed: up to 1024
        rank that was negative | null | viewDims: 18446744073709551613 of them
        rank above 8 | 161002 | input: 9 axes
        rank 1000 | made |
        no dtype | null | dataType: 99
        no format | null | format: 77
        absurd storage | null | storageDims: 18446744073709551615 of them
        rank 0 | made |
        mask from null | null | value: null
        absurd mask | null | value: 18446744073709551615 of them
        empty mask | made |
        output elements twice | 161002 | gradInput: strides (0, 4, 1) name some elements twice
        size of no dtype 0 | 0 |
        """,
    "workspaces": """
        a workspace is needed 1 | 0 |
        null | 161001 | workspace: null; allowed: 831 bytes
        size too small | 161002 | workspaceSize: 830; allowed: 831 or more
        size 0 | 161002 | workspaceSize: 0; allowed: 831 or more
        block too small | 161002 | workspace: 830 bytes; allowed: 831
        rest of a block too small | 161002 | workspace: 830 bytes; allowed: 831
        memory of the host | 161002 | workspace: memory that is not from aclrtMalloc
        a block of the host's | 161002 | workspace: memory that is not from aclrtMalloc
        made up | 161002 | workspace: memory that is not from aclrtMalloc
        freed | 161002 | workspace: memory that aclrtFree has freed
        """,
    "runtimes": """
        message before any error [] | 0 |
        malloc before aclInit | 100001 | aclrtMalloc: before aclInit
        stream before aclInit | 100001 | aclrtCreateStream: before aclInit
        finalize before aclInit | 100001 | aclFinalize: before aclInit
        config that is not there | 100000 | '/nowhere/acl.json' (No such file or directory)
        config that is none | 100000 | allowed: a JSON file
        init | 0 |
        init twice | 100002 | aclInit: a second time
        no such device | 107000 | deviceId: 7; allowed: 0
        negative device | 107000 | deviceId: -1; allowed: 0
        reset before it is set | 107002 | deviceId: a device that is not set
        device | 0 |
        device to null | 107000 | deviceId: null
        stream to null | 107000 | stream: null
        synchronize the default stream | 0 |
        synchronize | 0 |
        destroy stream | 0 |
        destroy stream twice | 107000 | stream: a handle that aclrtDestroyStream has destroyed
        destroy the default stream | 107000 | stream: null
        synchronize a dead stream | 107000 | stream: a handle that aclrtDestroyStream has destroyed
        synchronize a made up stream | 107000 | which is no handle
        stream is an event | 107000 | stream: an Event
        time not recorded | 107000 | start: an event that was not recorded
        record on a dead stream | 107000 | stream: a handle that aclrtDestroyStream has destroyed
        time to null | 107000 | ms: null
        time | 0 |
        time is positive 1 | 0 |
        wait | 0 |
        destroy event | 0 |
        wait for a dead event | 107000 | event: a handle that aclrtDestroyEvent has destroyed
        synchronize a dead event | 107000 | event: a handle that aclrtDestroyEvent has destroyed
        version | 0 |
        it is 1.15 | 0 |
        aligned memory | 0 |
        is aligned 1 | 0 |
        free it | 0 |
        done 0 0 0 | 0 |
        query a dead stream | 107000 | stream: a handle that aclrtDestroyStream has destroyed
        reset on a dead stream | 107000 | stream: a handle that aclrtDestroyStream has destroyed
        reset an event | 0 |
        then 1 0 | 0 |
        time of what was reset | 107000 | start: an event that was not recorded
        timeout of an event | 107000 | timeout: -2; allowed: milliseconds, or -1 for any time
        timeouts | 0 |
        rows 1 2 0 | 0 |
        rows past the end | 107000 | dst: 20 bytes; allowed: 16
        set context | 0 |
        destroy context | 0 |
        set a dead context | 107000 | context: a handle that aclrtDestroyContext has destroyed
        reset | 0 |
        reset past zero | 107002 | deviceId: a device that is not set; allowed: once for each
        synchronize what was reset | 107000 | stream: a handle that aclrtResetDevice has destroyed
        destroy it | 107000 | stream: a handle that aclrtResetDevice has destroyed
        set what was reset | 107000 | devPtr: memory that aclrtResetDevice has freed
        copy to it | 107000 | dst: memory that aclrtResetDevice has freed
        tensor over it | 161002 | gradOut: memory that aclrtResetDevice has freed
        destroy the tensor | 0 |
        free what was reset | 0 |
        free it twice | 107000 | devPtr: memory that aclrtFree has freed
        synchronize another context's | 0 |
        set another context's | 0 |
        finalize | 0 |
        finalize twice | 100037 | aclFinalize: a second time; allowed: once
        free after the end | 0 |
        malloc after the end | 100001 | aclrtMalloc: before aclInit
        """,
    "overlaps": """
        a gradient over the weight | 361001 | gradWeight: shares memory with weight
        two outputs in one place | 361001 | gradBias: shares memory with gradWeight
        outputs that overlap in part | 361001 | gradBias: shares memory with gradWeight
        a gradient in the input | 361001 | gradWeight: shares memory with input
        a gradient in the workspace | 361001 | workspace: shares memory with gradWeight
        the weight is as it was 1 | 0 |
        a masked-off output of the host's, phase 1 | 0 |
        and phase 2 | 0 |
        no elements, over memory of the host's, phase 1 | 0 |
        and phase 2 | 0 |
        grad_input over grad_out | 0 |
        """,
    "surface": """
        aclnnInit | 0 |
        aclnnInit twice | 161002 | configPath: a second call; allowed: one
        malloc before a device | 107002 | no device in this thread
        finalize without aclInit | 100001 | before aclInit; allowed: after it
        both inits | 0 |
        stream before a device | 107002 | no device in this thread
        device before one | 107002 | no device in this thread
        synchronize before a device | 107002 | no device in this thread
        reset less often than set | 0 |
        its own context | 0 |
        destroy that | 107000 | context: the device's own; allowed: what aclrtCreateContext made
        event in a thread without a device | 107002 | no device in this thread
        set the context of another thread | 0 |
        event with that | 0 |
        the same context 1 | 0 |
        a context that was made is the thread's 1 | 0 |
        malloc in a dead context | 107002 | no device in this thread
        stream of no priority | 107000 | priority: 8; allowed: 0 to 7
        stream of no kind | 107000 | flag: 0x40; allowed: ACL_STREAM_FAST_LAUNCH (0x1), ACL_STREAM_
        stream of a kind | 0 |
        timeout | 107000 | timeout: -2; allowed: milliseconds, or -1 for any time
        no time limit | 0 |
        event of no kind | 107000 | flag: 0x80; allowed: ACL_EVENT_SYNC (0x1), ACL_EVENT_CAPTURE_ST
        status of null | 107000 | event: null; allowed: what aclrtCreateEvent made
        status to null | 107000 | status: null; allowed: a pointer to write to
        not recorded 1 | 0 |
        wait for one that cannot | 107000 | event: one without ACL_EVENT_SYNC; allowed: one with it
        time of one that has none | 107000 | start: one without a time; allowed: one that
        rows | 0 |
        rows back | 0 |
        are 1 2 5 6 1 | 0 |
        rows past the end | 107000 | dst: 36 bytes; allowed: 24, in a block of 24
        rows over each other | 107000 | dpitch: 8 bytes; allowed: 12 or more
        rows on the device | 107000 | kind: 3; allowed: between the host and the device
        no rows | 0 |
        set later, past the end | 107000 | devPtr: 48 bytes; allowed: 24, in a block of 24
        set later | 0 |
        scalar of null | null | value: null; allowed: a pointer
        scalar of no dtype | null | dataType: 13; allowed: an aclDataType of numbers
        integers of null | null | value: null; allowed: a pointer
        numbers | made |
        size of integers | 0 |
        is 3 1 | 0 |
        size of another kind | 161002 | array: an aclIntArray; allowed: an aclFloatArray
        size to null | 161001 | size: null; allowed: a pointer
        destroy integers | 0 |
        destroy integers twice | 161002 | array: a handle that aclDestroyIntArray has destroyed
        size of tensors | 0 |
        tensors that are a scalar | null | value[0]: an aclScalar; allowed: an aclTensor
        destroy tensors | 0 |
        one of them again | 161002 | tensor: a handle that aclDestroyTensorList has destroyed
        destroy scalar | 0 |
        and the list with it | 161002 | array[0]: a handle that aclDestroyScalar has destroyed
        destroy no list | 0 |
        address of null | 561103 | executor: null; allowed: an aclOpExecutor
        address for null | 561103 | tensor: null; allowed: an aclTensor
        address in an executor for one use | 161002 | executor: used once; allowed: after aclSetAcl
        repeatable | 0 |
        without the address | 161002 | input: no memory; allowed: a tensor with data
        address of no tensor | 161002 | index: 10; allowed: 0 to 9
        address of a null tensor | 161002 | index: 3, runningMean, null in phase 1; allowed: a tens
        address of another tensor | 161002 | tensor: aclTensor(float32, ND, dims (1, 2, 4), strides
        address of the host | 161002 | addr: memory that is not from aclrtMalloc; allowed: device
        address too near the end | 161002 | addr: elements 2 to 9 of its storage; allowed: 0 to 7,
        address | 0 |
        of an input | 0 |
        of an output | 0 |
        of no output | 161002 | index: 3; allowed: 0 to 2
        destroy null | 561103 | executor: null; allowed: an aclOpExecutor
        reset as often | 0 |
        phase 2 without a device | 361001 | stream: no device in this thread; allowed: after aclrtS
        synchronize without a device | 107002 | no device in this thread
        free without one | 0 |
        aclnnFinalize | 0 |
        finalize | 0 |
        names 0 100037 507046 | 0 |
        """,
    "infiniop": """
        count to null | 3 | infinirtGetDeviceCount: count: null
        count | 0 |
        counts 0 1 0 | 0 |
        another device | 5 | infinirtSetDevice: device: INFINI_DEVICE_ASCEND
        no such device | 6 | infinirtSetDevice: device_id: 3
        no kind of device | 3 | infinirtSetDevice: device: 99
        handle to null | 3 | infiniopCreateHandle: handle_ptr: null
        destroy handle | 0 |
        destroy handle twice | 3 | handle: a handle that infiniopDestroyHandle has destroyed
        destroy null | 3 | handle: null
        destroy made up | 3 | which is no handle
        descriptor to null | 3 | desc_ptr: null
        descriptor without a shape | 3 | shape: null; allowed: 3 sizes
        descriptor of absurd rank | 3 | ndim: 18446744073709551615; allowed: up to 1024
        descriptor of absurd size | 3 | allowed: what an address can reach
        descriptor of absurd strides | 3 | with strides (9223372036854775807,): reaches over
        descriptor of no dtype | 3 | dtype: 77
        operator to null | 3 | desc_ptr: null
        descriptor null | 3 | input: null
        descriptor made up | 3 | input: 0x
        descriptor is a handle | 3 | input: an infiniopHandle_t
        two dtypes | 10 | grad_input: dtype float32; allowed: float16, as input
        matrix for a vector | 11 | grad_weight: 3 axes
        dead handle | 3 | handle: a handle that infiniopDestroyHandle has destroyed
        null handle | 3 | handle: null
        destroy descriptor twice | 3 | desc: a handle that infiniopDestroyTensorDescriptor has
        descriptor destroyed | 3 | grad_input: a handle that infiniopDestroyTensorDescriptor has
        workspace size to null | 3 | size: null
        workspace size of null | 3 | desc: null
        device of the operator | 0 |
        it is 0 | 0 |
        output null | 3 | grad_input: null
        input null | 3 | input: null
        input past its block | 3 | input: 95 bytes; allowed: 96
        workspace null | 3 | workspace: null; allowed: 2751 bytes
        workspace null, and said to be small | 13 | workspace: 2750 bytes; allowed: 2751 or more
        workspace said to be small | 13 | workspace: 2750 bytes of 2751
        workspace block too small | 13 | workspace: 2751 bytes of 2750
        operator null | 3 | desc: null
        operator made up | 3 | desc: 0x
        operator is a descriptor | 3 | desc: an infiniopTensorDescriptor_t
        stream made up | 3 | stream: 0x
        input freed | 3 | input: memory that infinirtFree has freed
        workspace freed | 3 | workspace: memory that infinirtFree has freed
        free twice | 3 | ptr: memory that infinirtFree has freed
        free null | 0 |
        free the stack | 3 | is in no block
        free device memory as the host's | 3 | ptr: memory from infinirtMalloc
        copy past the end | 3 | dst: 2751 bytes; allowed: 2750
        copy from null | 3 | src: null
        copy of no kind | 3 | kind: 9
        set past the end | 3 | ptr: 2751 bytes; allowed: 2750
        malloc of too much | 1 | size: 18446744073709551615 bytes
        malloc to null | 3 | p_ptr: null
        destroy operator | 0 |
        destroy operator twice | 3 | desc: a handle that infiniopDestroyBatchNormBackwardDescriptor
        operator destroyed | 3 | desc: a handle that infiniopDestroyBatchNormBackwardDescriptor
        """,
}
WITHOUT_KERNELS = sorted(set(EXPECTED) - {"overlaps"})


def dialect_of(name):
    return "infiniop" if name.startswith("infini") else "aclnn"


def cells(text):
    """The table of a text, a row for each line."""
    return [[cell.strip() for cell in line.split("|")] for line in text.strip().splitlines()]


def test_no_program_is_left_out():
    assert sorted(EXPECTED) == sorted(path.stem for path in MISUSE.glob("*.c"))


@pytest.mark.parametrize("name", EXPECTED)
def test_mistakes(libraries, tmp_path, name):
    program = libraries.compile(MISUSE / f"{name}.c", tmp_path / name, dialect_of(name))
    is_infini = dialect_of(name) == "infiniop"
    done = run(program, env={"NORMGRAD_CAPI_REPORT": "1"} if is_infini else {})
    assert done.returncode == 0, done.stdout + done.stderr
    found, expected = cells(done.stdout), cells(EXPECTED[name])
    assert [row[:2] for row in found] == [row[:2] for row in expected]
    if is_infini:
        messages = [
            line for line in done.stderr.splitlines() if line.startswith("normgrad: error ")
        ]
        failed = [row for row in expected if row[1] != "0"]
        assert len(messages) == len(failed)
        for message, (case, status, part) in zip(messages, failed, strict=True):
            assert message.startswith(f"normgrad: error {status}: "), case
            assert part in message, case
        return
    assert done.stderr == ""
    for (case, status, message), (_, _, part) in zip(found, expected, strict=True):
        assert part in message, case
        assert bool(message) == (status not in ("0", "made")), case


def test_mistakes_are_told_at_once_where_streams_have_threads(libraries, tmp_path):
    program = libraries.compile(MISUSE / "overlaps.c", tmp_path / "overlaps")
    done = run(program, env={"NORMGRAD_CAPI_STREAMS": "threads"})
    found, expected = cells(done.stdout), cells(EXPECTED["overlaps"])
    assert [row[:2] for row in found] == [row[:2] for row in expected]
    for (case, _, message), (_, _, part) in zip(found, expected, strict=True):
        assert part in message, case


@pytest.mark.skipif(
    os.environ.get("NORMGRAD_VALGRIND") != "1", reason="`nox -s valgrind` runs these"
)
@pytest.mark.parametrize("name", WITHOUT_KERNELS)
def test_mistakes_under_valgrind(libraries, tmp_path, name):
    """No invalid access."""
    assert shutil.which("valgrind") is not None
    program = libraries.compile(MISUSE / f"{name}.c", tmp_path / name, dialect_of(name))
    done = run(
        "valgrind",
        "--error-exitcode=99",
        "--leak-check=no",
        f"--suppressions={Path(__file__).parent / 'valgrind.supp'}",
        program,
        env={"PATH": os.environ["PATH"]},
        timeout=900,
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"ERROR SUMMARY: 0 errors", done.stderr)
    assert [row[:2] for row in cells(done.stdout)] == [row[:2] for row in cells(EXPECTED[name])]
