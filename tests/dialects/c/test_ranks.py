"""Several devices, callbacks, and HCCL's collectives between processes."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from .conftest import python_environment, run
from .test_examples import EXAMPLES

TWO = {"NORMGRAD_CAPI_DEVICES": "2", "NORMGRAD_CAPI_REPORT": "1"}


@pytest.mark.parametrize("threads", [{}, {"NORMGRAD_CAPI_STREAMS": "threads"}], ids=["", "threads"])
def test_a_synchronised_batch_norm_of_two_processes(libraries, tmp_path, threads):
    program = libraries.compile(EXAMPLES / "sync_batch_norm.cpp", tmp_path / "ranks")
    done = run(program, env={**TWO, **threads})
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("largest difference from one batch norm over both: ")


@pytest.mark.parametrize("threads", [{}, {"NORMGRAD_CAPI_STREAMS": "threads"}], ids=["", "threads"])
def test_callbacks(libraries, tmp_path, threads):
    source = Path(__file__).parent / "programs" / "callbacks.c"
    program = libraries.compile(source, tmp_path / "callbacks", extra=["-pthread"])
    done = run(program, env=threads)
    assert done.returncode == 0, done.stderr
    assert re.sub(r"thread \d+", "thread N", done.stdout).splitlines() == [
        "100034 stream: one of no thread; allowed: after aclrtSubscribeReport",
        "100035 a thread of no stream; allowed: after aclrtSubscribeReport",
        "100033 stream: one of thread N; allowed: one of no thread",
        "107000 fn: null; allowed: a function",
        "107000 blockType: 7; allowed: ACL_CALLBACK_NO_BLOCK, ACL_CALLBACK_BLOCK",
        "100036 timeout: no callback in 10 ms",
        "107000 timeout: -2; allowed: -1 for no limit, or milliseconds",
        "seen 4",
        "0 ",
        "100034 stream: one of no thread; allowed: after aclrtSubscribeReport",
        "10 2",
    ]


DEVICES = """
import ctypes
acl = ctypes.CDLL({lib!r} + "/libhccl.so")
acl.aclGetRecentErrMsg.restype = ctypes.c_char_p
def say(status): print(status, acl.aclGetRecentErrMsg().decode().partition(": ")[2])
number = ctypes.c_int(-1)
at = ctypes.byref(number)
print(acl.aclInit(None), acl.aclrtGetDeviceCount(at), number.value)
print(acl.aclrtSetDevice(1), acl.aclrtSetDevice(0), acl.aclrtGetDevice(at), number.value)
context, memory = ctypes.c_void_p(), ctypes.c_void_p()
print(acl.aclrtCreateContext(ctypes.byref(context), 1), acl.aclrtGetDevice(at), number.value)
print(acl.aclrtSetDevice(1), acl.aclrtMalloc(ctypes.byref(memory), ctypes.c_size_t(8), 0))
print(acl.aclrtResetDevice(0), acl.aclrtGetDevice(at), number.value)
print(acl.aclrtMemset(memory, ctypes.c_size_t(8), 0, ctypes.c_size_t(8)))
print(acl.aclrtDeviceCanAccessPeer(at, 0, 1), number.value, acl.aclrtDeviceEnablePeerAccess(0, 0))
say(acl.aclrtDeviceCanAccessPeer(at, 1, 1))
say(acl.aclrtDeviceEnablePeerAccess(1, 0))
say(acl.aclrtSetDevice(2))
print(acl.aclrtResetDevice(1), acl.aclrtResetDevice(1))
say(acl.aclrtResetDevice(1))
say(acl.aclrtGetDevice(at))
"""


def test_two_devices(libraries):
    script = DEVICES.format(lib=str(libraries.out / "lib"))
    done = run(sys.executable, "-c", script, env=python_environment(NORMGRAD_CAPI_DEVICES="2"))
    assert done.stdout.splitlines() == [
        "0 0 2",
        "0 0 0 0",
        "0 0 1",
        "0 0",
        "0 0 1",
        "0",
        "0 1 0",
        "107000 peerDeviceId: 1; allowed: another device than 1",
        "107000 peerDeviceId: 1; allowed: another device than 1",
        "107000 deviceId: 2; allowed: 0 to 1",
        "0 0",
        "107002 deviceId: a device that is not set; allowed: once for each aclrtSetDevice",
        "107002 no device in this thread; allowed: after aclrtSetDevice or aclrtSetCurrentContext "
        "in it, and before aclrtResetDevice",
    ], done.stderr


def test_a_number_of_devices_that_is_none(libraries):
    script = f"""
import ctypes
acl = ctypes.CDLL({str(libraries.out / "lib" / "libascendcl.so")!r})
acl.aclGetRecentErrMsg.restype = ctypes.c_char_p
print(acl.aclInit(None), acl.aclGetRecentErrMsg().decode())
"""
    for text in ("0", "65", "two", "-1"):
        done = run(sys.executable, "-c", script, env=python_environment(NORMGRAD_CAPI_DEVICES=text))
        said = f"100000 aclInit: NORMGRAD_CAPI_DEVICES: {text!r}; allowed: 1 to 64\n"
        assert done.stdout == said, done.stderr


COLLECTIVES = """
import ctypes, os, threading
import ml_dtypes, numpy as np
hccl = ctypes.CDLL({lib!r} + "/libhccl.so")
hccl.aclGetRecentErrMsg.restype = hccl.HcclGetErrorString.restype = ctypes.c_char_p
P, N = ctypes.c_void_p, ctypes.c_uint64
def say(status): print(status, hccl.aclGetRecentErrMsg().decode().partition(": ")[2])
assert hccl.aclInit(None) == hccl.aclrtSetDevice(0) == 0
root = ctypes.create_string_buffer(4108)
lines = {{}}
def rank_of(number):
    assert hccl.aclrtSetDevice(0) == 0
    comm, memory = P(), P()
    assert hccl.HcclCommInitRootInfo(3, root, number, ctypes.byref(comm)) == 0
    assert hccl.aclrtMalloc(ctypes.byref(memory), ctypes.c_size_t(192), 0) == 0
    def reduced(kind, operation, dtype, *values):
        values = np.array(values).astype(dtype)
        hccl.aclrtMemcpy(memory, N(64), values.ctypes.data_as(P), N(values.nbytes), 1)
        count = N(values.size)
        assert hccl.HcclAllReduce(memory, memory, count, kind, operation, comm, None) == 0
        hccl.aclrtMemcpy(values.ctypes.data_as(P), N(64), memory, N(values.nbytes), 2)
        return values.tolist()
    lines[number] = [
        reduced(4, 0, np.float32, number, 2**24 if number == 1 else 1),
        reduced(3, 1, np.float16, number + 1),
        reduced(11, 2, ml_dtypes.bfloat16, -number),
        reduced(2, 3, np.int32, number + 5),
        reduced(5, 0, np.int64, 2**53 + number),
    ]
    assert hccl.HcclCommDestroy(comm) == 0
say(hccl.HcclGetRootInfo(None))
say(hccl.HcclCommInitRootInfo(3, root, 0, ctypes.byref(P())))
assert hccl.HcclGetRootInfo(root) == 0
say(hccl.HcclCommInitRootInfo(3, root, 3, ctypes.byref(P())))
say(hccl.HcclCommInitRootInfo(2**32 - 1, root, 0, ctypes.byref(P())))
threads = [threading.Thread(target=rank_of, args=(each,)) for each in range(3)]
for each in threads: each.start()
for each in threads: each.join()
print(lines[0], lines[0] == lines[1] == lines[2])
assert hccl.HcclGetRootInfo(root) == 0
alone, memory = P(), P()
assert hccl.HcclCommInitRootInfo(1, root, 0, ctypes.byref(alone)) == 0
hccl.aclrtMalloc(ctypes.byref(memory), ctypes.c_size_t(16), 0)
numbers = [ctypes.c_uint32(9), ctypes.c_uint32(9)]
assert hccl.HcclGetRankId(alone, ctypes.byref(numbers[0])) == 0
assert hccl.HcclGetRankSize(alone, ctypes.byref(numbers[1])) == 0
print(numbers[0].value, numbers[1].value)
say(hccl.HcclAllReduce(memory, memory, N(4), 99, 0, alone, None))
say(hccl.HcclAllReduce(memory, memory, N(4), 4, 9, alone, None))
say(hccl.HcclAllReduce(memory, memory, N(5), 4, 0, alone, None))
say(hccl.HcclAllReduce(memory, memory, N(2**62), 4, 0, alone, None))
say(hccl.HcclAllReduce(None, memory, N(4), 4, 0, alone, None))
say(hccl.HcclBroadcast(memory, N(4), 4, 1, alone, None))
say(hccl.HcclAllReduce(memory, memory, N(4), 4, 0, alone, P(16)))
print(hccl.HcclCommDestroy(alone))
say(hccl.HcclCommDestroy(alone))
say(hccl.HcclBarrier(None, None))
say(hccl.HcclCommInitRootInfo(2, root, 1, ctypes.byref(P())))
print(hccl.HcclGetErrorString(9).decode())
"""


def test_collectives_of_threads_and_their_mistakes(libraries):
    script = COLLECTIVES.format(lib=str(libraries.out / "lib"))
    done = run(sys.executable, "-c", script, env=python_environment())
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[:4] == [
        "2 rootInfo: null; allowed: a pointer to write to",
        "1 rootInfo: none of HcclGetRootInfo; allowed: what that made",
        "1 rank: 3 of 3; allowed: less than nRanks",
        "1 nRanks: 4294967295; allowed: up to 65536",
    ]
    # Sums round once: 1 + 2^24 + 1 is exact in float32.
    assert lines[4] == "[[3.0, 16777218.0], [6.0], [0.0], [5], [27021597764222979]] True"
    assert lines[5:] == [
        "0 1",
        "1 dataType: 99; allowed: an HcclDataType of numbers",
        "1 op: 9; allowed: HCCL_REDUCE_SUM, HCCL_REDUCE_PROD, HCCL_REDUCE_MAX, HCCL_REDUCE_MIN",
        "1 sendBuf: 20 bytes; allowed: 16, in a block of 16",
        "1 count: 4611686018427387904; allowed: fewer elements than memory has",
        "2 sendBuf: null; allowed: 16 bytes of memory",
        "1 root: 1; allowed: less than 1, the number of ranks",
        "1 stream: 0x10, which is no handle; allowed: what aclrtCreateStream made",
        "0",
        "1 comm: a handle that HcclCommDestroy has destroyed; "
        "allowed: what HcclCommInitRootInfo made",
        "2 comm: null; allowed: what HcclCommInitRootInfo made",
        "21 another rank: Connection refused; allowed: all ranks make the same calls",
        "HCCL_E_TIMEOUT",
    ]


def test_ranks_that_fork_after_the_root_info(libraries, tmp_path):
    """Also without a standard input, whose number the root info's socket gets."""
    source = Path(__file__).parent / "programs" / "forked_ranks.c"
    program = libraries.compile(source, tmp_path / "ranks")
    for more in (), ("no input",):
        done = run(program, *more, timeout=60)
        assert (done.returncode, sorted(done.stdout.splitlines())) == (
            0,
            ["rank 0: 3", "rank 1: 3"],
        )


def test_all_ranks_see_that_one_has_ended(libraries, tmp_path):
    """Also those whose connection is to another one, which goes on."""
    source = Path(__file__).parent / "programs" / "ended_rank.c"
    program = libraries.compile(source, tmp_path / "ranks", extra=["-pthread"])
    done = run(program, timeout=60)
    assert (done.returncode, done.stdout) == (0, "21 21\n")
