"""Physical memory: reserved addresses, what is mapped at them, and the mistakes with both."""

from __future__ import annotations

import sys

from .conftest import python_environment, run

SCRIPT = """
import ctypes
import numpy as np
acl = ctypes.CDLL({lib!r} + "/libopapi.so")
acl.aclGetRecentErrMsg.restype = ctypes.c_char_p
acl.aclCreateTensor.restype = ctypes.c_void_p
P, N = ctypes.c_void_p, ctypes.c_size_t
UNIT = 2 << 20
def say(status): print(status, acl.aclGetRecentErrMsg().decode().partition(": ")[2])
def made(function, *rest):
    pointer = P()
    assert function(ctypes.byref(pointer), *rest) == 0, acl.aclGetRecentErrMsg()
    return pointer
def to_host(array, at):
    size = N(array.nbytes)
    return acl.aclrtMemcpy(array.ctypes.data_as(P), size, P(at), size, 2)
assert acl.aclInit(None) == acl.aclrtSetDevice(0) == 0
prop = (ctypes.c_uint32 * 8)(0, 0, 4, 0, 1)
odd = (ctypes.c_uint32 * 8)(0, 0, 4, 0, 7)
granularity = N()
print(acl.aclrtMemGetAllocationGranularity(prop, 1, ctypes.byref(granularity)), granularity.value)
space = made(acl.aclrtReserveMemAddress, N(1 << 35), N(0), None, N(1)).value
chunks = [made(acl.aclrtMallocPhysical, N(UNIT), prop, N(0)) for _ in range(2)]
for index, chunk in enumerate(chunks):
    assert acl.aclrtMapMem(P(space + index * UNIT), N(UNIT), N(0), chunk, N(0)) == 0
    assert acl.aclrtFreePhysical(chunk) == 0
# New memory is NaN; a tensor may lie in both chunks, as in a pool that grows.
found = np.zeros(6, np.float32)
assert to_host(found, space) == 0 and np.isnan(found).all()
x = np.arange(16, dtype=np.float32)
at = space + UNIT - 32
assert acl.aclrtMemcpy(P(at), N(64), x.ctypes.data_as(P), N(64), 1) == 0
def tensor(address, *shape):
    sizes, axes = (ctypes.c_int64 * len(shape))(*shape), N(len(shape))
    return P(acl.aclCreateTensor(sizes, axes, 0, None, N(0), 2, sizes, axes, P(address)))
size, executor = N(), P()
acl.aclnnBatchNormStatsGetWorkspaceSize.argtypes = [P, ctypes.c_double, P, P, P, P]
places = ctypes.addressof(size), ctypes.addressof(executor)
def stats():
    tensors = tensor(at, 8, 2), tensor(space, 2), tensor(space + 32, 2)
    return acl.aclnnBatchNormStatsGetWorkspaceSize(tensors[0], 0.0, *tensors[1:], *places)
assert stats() == 0
workspace = made(acl.aclrtMalloc, size, 0)
assert acl.aclnnBatchNormStats(workspace, size, executor, None) == 0
mean = np.zeros(2, np.float32)
print(to_host(mean, space), mean)
say(to_host(np.zeros(16, np.float32), space + 2 * UNIT - 32))
say(acl.aclrtFree(P(space)))
say(acl.aclrtReleaseMemAddress(P(space)))
other = made(acl.aclrtMallocPhysical, N(UNIT), prop, N(0))
say(acl.aclrtMapMem(P(space), N(UNIT), N(0), other, N(0)))
say(acl.aclrtMapMem(P(space + 3 * UNIT + 4096), N(UNIT), N(0), other, N(0)))
say(acl.aclrtMapMem(P(space + 3 * UNIT), N(2 * UNIT), N(0), other, N(0)))
say(acl.aclrtMapMem(P(space + 3 * UNIT), N(UNIT), N(UNIT), other, N(0)))
say(acl.aclrtMapMem(P(space + (1 << 35)), N(UNIT), N(0), other, N(0)))
say(acl.aclrtUnmapMem(P(space + UNIT // 2)))
print(acl.aclrtUnmapMem(P(space)))
say(acl.aclrtUnmapMem(P(space)))
say(to_host(mean, space))
say(stats())
# The other chunk keeps its content, and the freed addresses can be used again.
print(to_host(mean, space + UNIT), mean)
print(acl.aclrtMapMem(P(space), N(UNIT), N(0), other, N(0)), acl.aclrtFreePhysical(other), stats())
say(acl.aclrtFreePhysical(other))
print(acl.aclrtUnmapMem(P(space)), acl.aclrtUnmapMem(P(space + UNIT)))
# So can a part of them.
for size, at in (2 * UNIT, space), (UNIT, space + UNIT):
    chunk = made(acl.aclrtMallocPhysical, N(size), prop, N(0))
    assert acl.aclrtMapMem(P(at), N(size), N(0), chunk, N(0)) == 0
    print(to_host(mean, at), acl.aclrtUnmapMem(P(at)))
print(acl.aclrtReleaseMemAddress(P(space)))
say(acl.aclrtReleaseMemAddress(P(space)))
say(acl.aclrtUnmapMem(P(space)))
say(acl.aclrtMallocPhysical(ctypes.byref(executor), N(4096), prop, N(0)))
say(acl.aclrtMallocPhysical(ctypes.byref(executor), N(UNIT), odd, N(0)))
say(acl.aclrtReserveMemAddress(ctypes.byref(executor), N(1 << 61), N(0), None, N(0)))
say(acl.aclrtReserveMemAddress(ctypes.byref(executor), N(UNIT), N(UNIT), None, N(0)))
"""


def test_physical_memory(libraries):
    script = SCRIPT.format(lib=str(libraries.out / "lib"))
    done = run(sys.executable, "-c", script, env=python_environment())
    assert done.returncode == 0, done.stderr
    made, reserved = "what aclrtMallocPhysical made", "what aclrtReserveMemAddress reserved"
    allowed = f"allowed: a multiple of 2097152 in {reserved}"
    lines = done.stdout.splitlines()
    expected = f"""
0 2097152
0 [7. 8.]
107000 src: 64 bytes; allowed: 32, in a block of 2097152, from byte 2097120 of it
107000 devPtr: memory from aclrtMapMem; allowed: what aclrtMalloc or aclrtMallocAlign32 allocated
107000 virPtr: addresses with memory; allowed: after aclrtUnmapMem of all of it
107000 virPtr: addresses with memory; allowed: after aclrtUnmapMem
107000 virPtr: ADDRESS and 2097152 bytes; {allowed}
107000 size: 4194304; allowed: 2097152, that of the physical memory
107000 offset: 0x200000; allowed: 0
107000 virPtr: ADDRESS and 2097152 bytes; {allowed}
107000 virPtr: 1048576 bytes behind the start of a block; allowed: its start
0
107000 virPtr: memory that aclrtUnmapMem has freed; allowed: what aclrtMapMem allocated
107000 src: memory that aclrtUnmapMem has freed; allowed: not freed
161002 input: memory that aclrtUnmapMem has freed; allowed: not freed
0 [8. 9.]
0 0 0
107000 handle: a handle that aclrtFreePhysical has destroyed; allowed: {made}
0 0
0 0
0 0
0
107000 virPtr: ADDRESS; allowed: {reserved}
107000 virPtr: ADDRESS is in no block; allowed: what aclrtMapMem allocated
107000 size: 4096; allowed: a multiple of 2097152, more than 0
107000 prop.location.type: 7; allowed: ACL_MEM_LOCATION_TYPE_HOST, ACL_MEM_LOCATION_TYPE_DEVICE
207001 size: 2305843009213693952 bytes; allowed: what the machine has
107000 alignment: 0x200000; allowed: 0
""".strip().splitlines()
    assert len(lines) == len(expected), done.stdout
    for line, wanted in zip(lines, expected, strict=True):
        before, is_address, after = wanted.partition("ADDRESS")
        assert line.startswith(before)
        assert line.endswith(after) if is_address else line == wanted
