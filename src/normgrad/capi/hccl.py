"""libhccl: CANN's collectives, between the processes and threads of one machine.

The rank that has made the root info is the hub: all others send their data to it, and it sends back
the results. Reductions go over the ranks in order, in float64 or the integers' own type, and round
once, so all ranks get the same bits.
"""

from __future__ import annotations

import ctypes
import secrets
import socket
import struct
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NoReturn

import ml_dtypes
import numpy as np

from ..dialects import span
from . import acl
from .calls import export, fail, need_memory, refuse
from .enums import HcclDataType, HcclReduceOp, HcclResult
from .handles import HANDLES
from .pointers import Address
from .streams import STREAMS

_ROOT_INFO_BYTES = 4108
#: The first bytes of a root info, and the bytes of its token behind them.
_MAGIC, _TOKEN = b"normgrad", 16
_ALLOWED = "what HcclCommInitRootInfo made"
#: The seconds to wait until all ranks are there, and for the data of another rank.
_CONNECT, _EXECUTE = 120, 1836

_NUMPY_TYPES = (
    *("int8", "int16", "int32", "float16", "float32", "int64", "uint64"),
    *("uint8", "uint16", "uint32", "float64", ml_dtypes.bfloat16),
)
_DTYPES: dict[int, np.dtype[Any]] = dict(
    zip(HcclDataType, map(np.dtype, _NUMPY_TYPES), strict=False)
)
_REDUCTIONS = dict(zip(HcclReduceOp, (np.add, np.multiply, np.maximum, np.minimum), strict=False))

#: The sockets of root infos that were made in this process and have no hub yet, by their tokens.
_waiting: dict[bytes, socket.socket] = {}


class Communicator:
    """A rank's connections: to all other ranks if it is the hub, otherwise to the hub."""

    def __init__(self, rank: int, size: int, token: bytes) -> None:
        self.rank, self.size = rank, size
        self._lock = threading.Lock()
        self._peers: dict[int, socket.socket] = {}
        self._hub: socket.socket | None = None
        listener = _waiting.pop(token, None)
        if listener is None:
            self._hub = socket.socket(socket.AF_UNIX)
            self._hub.settimeout(_CONNECT)
            self._hub.connect(_address(token))
            _send(self._hub, token + struct.pack("=II", rank, size))
            if _receive(self._hub) != token:
                raise OSError("another rank has this number, or another number of ranks")
            self._hub.settimeout(_EXECUTE)
            return
        with listener:
            listener.settimeout(_CONNECT)
            while len(self._peers) < size - 1:
                peer, _ = listener.accept()
                peer.settimeout(_EXECUTE)
                greeting = _receive(peer)
                other, its_size = struct.unpack("=II", greeting[_TOKEN:])
                if greeting[:_TOKEN] != token or its_size != size or other in (rank, *self._peers):
                    _send(peer, b"")
                    peer.close()
                else:
                    self._peers[other] = peer
        for peer in self._peers.values():
            _send(peer, token)

    def exchange(self, mine: bytes, combine: Callable[[Sequence[bytes]], bytes]) -> bytes:
        """What ``combine`` makes of all ranks' data, in the order of the ranks."""
        with self._lock:
            if self._hub is not None:
                _send(self._hub, mine)
                return _receive(self._hub)
            parts = {self.rank: mine, **{rank: _receive(at) for rank, at in self._peers.items()}}
            result = combine([parts[rank] for rank in range(self.size)])
            for peer in self._peers.values():
                _send(peer, result)
            return result

    def close(self) -> None:
        """End the connections."""
        for each in (*self._peers.values(), *filter(None, [self._hub])):
            each.close()


def _address(token: bytes) -> str:
    """The name of a root's socket, which is in no folder."""
    return f"\0normgrad-hccl-{token[: _TOKEN // 2].hex()}"


def _send(to: socket.socket, data: bytes) -> None:
    to.sendall(struct.pack("=Q", len(data)) + data)


def _receive(source: socket.socket) -> bytes:
    def exactly(count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            part = source.recv(min(count - len(data), 1 << 20))
            if not part:
                raise ConnectionError("another rank has ended")
            data += part
        return bytes(data)

    (size,) = struct.unpack("=Q", exactly(8))
    return exactly(size)


def _fail_exchange(error: OSError) -> NoReturn:
    is_late = isinstance(error, TimeoutError)
    status = HcclResult.HCCL_E_TIMEOUT if is_late else HcclResult.HCCL_E_REMOTE
    fail(f"another rank: {error}; allowed: all ranks make the same calls", status)


def _communicator(comm: Address) -> Communicator:
    return HANDLES.need("comm", Communicator, comm, _ALLOWED)


# The library


def HcclGetRootInfo(root_info: Address) -> None:
    """Open a socket that the other ranks find by the root info."""
    address = need_memory("rootInfo", root_info, _ROOT_INFO_BYTES, writing=True)
    token = secrets.token_bytes(_TOKEN)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(_address(token))
    listener.listen(64)
    _waiting[token] = listener
    ctypes.memset(address, 0, _ROOT_INFO_BYTES)
    ctypes.memmove(address, _MAGIC + token, len(_MAGIC) + _TOKEN)


def HcclCommInitRootInfo(size: int, root_info: Address, rank: int) -> int:
    address = need_memory("rootInfo", root_info, _ROOT_INFO_BYTES)
    content = ctypes.string_at(address, len(_MAGIC) + _TOKEN)
    if not content.startswith(_MAGIC):
        refuse("rootInfo", "none of HcclGetRootInfo; allowed: what that made")
    if not 0 <= rank < size:
        refuse("rank", f"{rank} of {size}; allowed: less than nRanks")
    if not acl.has_device():
        fail(acl.NO_DEVICE, HcclResult.HCCL_E_RUNTIME)
    try:
        communicator = Communicator(rank, size, content[len(_MAGIC) :])
    except OSError as error:
        _fail_exchange(error)
    return HANDLES.add(communicator)


def HcclCommDestroy(comm: Address) -> None:
    HANDLES.take("comm", Communicator, comm, _ALLOWED).close()


def _collective(
    comm: Address,
    stream: Address,
    send: tuple[str, Address, int],
    receive: tuple[str, Address, int],
    combine: Callable[[Sequence[bytes]], bytes],
) -> None:
    """Exchange the bytes of one place, and store the result in another, on a stream.

    ``send`` and ``receive`` are each the parameter's name, its address, and a number of bytes;
    ``combine`` makes the result of all ranks' bytes.
    """
    communicator = _communicator(comm)
    where = acl.RUNTIME.stream(stream)
    if not acl.has_device():
        fail(acl.NO_DEVICE, HcclResult.HCCL_E_RUNTIME)
    for name, address, count in (send, receive):
        acl.RUNTIME.reach(name, address, count, True)
    source, target = send[1] or 0, receive[1] or 0

    def run() -> None:
        try:
            result = communicator.exchange(ctypes.string_at(source, send[2]), combine)
        except OSError as error:
            _fail_exchange(error)
        if len(result) != receive[2]:
            fail(f"{len(result)} bytes of all ranks; allowed: {receive[2]}, the same call in each")
        ctypes.memmove(target, result, receive[2])

    uses = (span(send[0], "reads", source, send[2]), span(receive[0], "writes", target, receive[2]))
    STREAMS.do(where, lambda: uses, run, objects=(communicator,))


def _dtype(data_type: int) -> np.dtype[Any]:
    if data_type not in _DTYPES:
        refuse("dataType", f"{data_type}; allowed: an HcclDataType of numbers")
    return _DTYPES[data_type]


def _reduce(dtype: np.dtype[Any], operation: Any, parts: Sequence[bytes]) -> bytes:
    is_whole = dtype.kind in "iu"
    values = [np.frombuffer(part, dtype) for part in parts]
    wide = values if is_whole else [value.astype(np.float64) for value in values]
    with np.errstate(all="ignore"):
        result = wide[0].copy()
        for value in wide[1:]:
            result = operation(result, value)
        return result.astype(dtype).tobytes()


def HcclAllReduce(
    send: Address, receive: Address, count: int, kind: int, op: int, comm: Address, stream: Address
) -> None:
    dtype = _dtype(kind)
    if op not in _REDUCTIONS:
        refuse("op", f"{op}; allowed: {', '.join(each.name for each in _REDUCTIONS)}")
    size = count * dtype.itemsize
    combine = partial(_reduce, dtype, _REDUCTIONS[op])
    _collective(comm, stream, ("sendBuf", send, size), ("recvBuf", receive, size), combine)


def HcclAllGather(
    send: Address, receive: Address, count: int, data_type: int, comm: Address, stream: Address
) -> None:
    size = count * _dtype(data_type).itemsize
    whole = size * _communicator(comm).size
    _collective(comm, stream, ("sendBuf", send, size), ("recvBuf", receive, whole), b"".join)


def HcclBroadcast(
    buffer: Address, count: int, data_type: int, root: int, comm: Address, stream: Address
) -> None:
    size, ranks = count * _dtype(data_type).itemsize, _communicator(comm).size
    if root >= ranks:
        refuse("root", f"{root}; allowed: less than {ranks}, the number of ranks")
    place = ("buf", buffer, size)
    _collective(comm, stream, place, place, lambda parts: parts[root])


def HcclBarrier(comm: Address, stream: Address) -> None:
    nothing = ("buf", None, 0)
    _collective(comm, stream, nothing, nothing, b"".join)


def HcclGetErrorString(code: int) -> int:
    is_known = code in set(HcclResult)
    return acl.c_text(HcclResult(code).name if is_known else f"{code}, which is no HcclResult")


_CALLS: dict[str, Callable[..., Any]] = {
    "HcclGetRankSize": lambda comm: _communicator(comm).size,
    "HcclGetRankId": lambda comm: _communicator(comm).rank,
}
export(globals(), "hccl", _CALLS)
