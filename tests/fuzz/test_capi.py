"""The C libraries in a process of their own, by ctypes: results, listed statuses, no crash."""

from __future__ import annotations

import ast
import math
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import c_libraries
import numpy as np
import pytest
from aclnn_spec import A2, CODES, FORMATS
from fuzz import capi_child, hostile, test_aclnn, test_infiniop
from fuzz.ledger import cases, count
from hypothesis import given
from hypothesis import strategies as st

SURFACE = "C libraries"
#: Of each dialect, what a call may return but for success.
ACL_STATUSES = {161001, 161002, 361001, 561003, 100000, 107000, 207001}
INFINI_STATUSES = {3, 5, 6, 10, 11, 12, 13}

#: No case takes so long, on any machine; what does hangs.
_SECONDS = 300


class Child:
    """The process that makes the calls, started anew where a case has ended it."""

    def __init__(self, folder: Path) -> None:
        self._command = [sys.executable, capi_child.__file__, str(folder)]
        self._process: subprocess.Popen[str] | None = None

    def run(self, steps: list[Any]) -> list[Any]:
        """What a case's calls return."""
        if self._process is None:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            self.run([("aclInit", [None]), ("aclrtSetDevice", [0])])
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        watchdog = threading.Timer(_SECONDS, process.kill)
        watchdog.start()
        process.stdin.write(f"{steps!r}\n")
        process.stdin.flush()
        answer = process.stdout.readline()
        watchdog.cancel()
        if not answer:
            status = process.wait()
            self.close()
            pytest.fail(f"the process ended with {status} in {steps!r}")
        found: list[Any] = ast.literal_eval(answer)
        return found

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


@pytest.fixture(scope="module")
def child(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Child]:
    if shutil.which("gcc") is None:
        pytest.skip("no gcc")
    made = Child(c_libraries.built(tmp_path_factory) / "lib")
    yield made
    made.close()


class Blocks:
    """A call's arenas as blocks of the libraries' memory.

    Args:
        views: the tensors.
        dialect: whose memory: "aclnn" or "infiniop".
    """

    def __init__(self, views: dict[str, hostile.View], dialect: str) -> None:
        arenas = list({id(view.arena): view.arena for view in views.values()}.values())
        self._names = {id(arena): f"block {index}" for index, arena in enumerate(arenas)}
        self._arenas = arenas
        self._dialect = dialect

    def name(self, view: hostile.View) -> str:
        return self._names[id(view.arena)]

    def made(self) -> list[Any]:
        steps: list[Any] = []
        for arena in self._arenas:
            block = self._names[id(arena)]
            content = ("bytes", arena.tobytes())
            if self._dialect == "aclnn":
                steps += [
                    ("aclrtMalloc", [("at", block), arena.size, 0]),
                    ("aclrtMemcpy", [("made", block), arena.size, content, arena.size, 1]),
                ]
            else:
                steps += [
                    ("infinirtMalloc", [("at", block), arena.size]),
                    ("infinirtMemcpy", [("made", block), content, arena.size, 1]),
                ]
        return steps

    def read(self) -> list[Any]:
        return [("read", self._names[id(arena)], arena.size) for arena in self._arenas]

    def freed(self) -> list[Any]:
        free = "aclrtFree" if self._dialect == "aclnn" else "infinirtFree"
        return [(free, [("made", self._names[id(arena)])]) for arena in self._arenas]

    def take_back(self, contents: list[bytes]) -> None:
        """What is in the blocks, into the arenas."""
        for arena, content in zip(self._arenas, contents, strict=True):
            arena[...] = np.frombuffer(content, np.uint8)


def _tensor_step(blocks: Blocks, view: hostile.View, order: str, name: str) -> Any:
    rank, start = len(view.shape), view.offset % view.itemsize
    arguments = [
        ("int64", view.shape), rank, CODES[view.dtype], ("int64", view.steps),
        view.offset // view.itemsize, FORMATS[order], ("int64", view.shape), rank,
        ("behind", (blocks.name(view), start)),
    ]  # fmt: skip
    return ("aclCreateTensor", arguments, name)


def _acl_steps(call: test_aclnn.Call, blocks: Blocks) -> tuple[list[Any], dict[str, Any]]:
    """What makes the tensors and the mask, and phase 1's arguments by name."""
    steps, arguments = blocks.made(), {}
    for name in test_aclnn.ORDER[call.function].split():
        if name == "outputMask":
            mask = tuple(call.scalars[name])
            steps.append(("aclCreateBoolArray", [("bool", mask), len(mask)], name))
            arguments[name] = ("made", name)
        elif name in call.scalars:
            arguments[name] = call.scalars[name]
        elif name in call.views:
            steps.append(_tensor_step(blocks, call.views[name], call.formats[name], name))
            arguments[name] = ("made", name)
        else:
            arguments[name] = None
    return steps, arguments


def _acl_calls(function: str) -> Any:
    # Numbers that a literal cannot hold are for Python's side.
    return test_aclnn.calls(function, [A2], negative=False).filter(
        lambda call: math.isfinite(call.scalars.get("eps", 0.0))
    )


def _phases(function: str, arguments: dict[str, Any]) -> list[Any]:
    found = [("at", "size"), ("at", "executor")]
    return [
        (f"{function}GetWorkspaceSize", [*arguments.values(), *found]),
        ("aclrtMalloc", [("at", "workspace"), ("count", "size"), 0]),
        (function, [("made", "workspace"), ("count", "size"), ("made", "executor"), None]),
    ]


def _ended(arguments: dict[str, Any]) -> list[Any]:
    """Every handle destroyed."""
    steps: list[Any] = []
    for name, value in arguments.items():
        if isinstance(value, tuple):
            kind = "aclDestroyBoolArray" if name == "outputMask" else "aclDestroyTensor"
            steps.append((kind, [("made", name)]))
    return steps


@pytest.mark.parametrize("function", test_aclnn.ORDER)
@cases(12)
@given(data=st.data())
def test_aclnn_legal(child: Child, function: str, data: Any) -> None:
    call = data.draw(_acl_calls(function))
    blocks = Blocks(call.views, "aclnn")
    steps, arguments = _acl_steps(call, blocks)
    phases = _phases(function, arguments)
    before, watched = call.inputs(), call.watched()
    again = (function, phases[2][1])
    after = [again, *_ended(arguments), *blocks.freed(), *blocks.freed()]
    results = child.run([*steps, *phases, *blocks.read(), *after])
    made, rest = results[: len(steps)], results[len(steps) :]
    assert set(made) <= {0}
    assert rest[0] == 0
    assert rest[1] in (0, 100000)  # no memory of no bytes
    assert rest[2] == 0
    contents = rest[3 : 3 + len(blocks.read())]
    blocks.take_back(contents)
    watched.check_gaps()
    call.check(before)
    ended = rest[3 + len(contents) :]
    blocks_freed = len(blocks.freed())
    assert ended[0] == 161002  # the executor is used up
    assert set(ended[1:-blocks_freed]) <= {0}
    assert set(ended[-blocks_freed:]) <= {107000}  # freed before
    count(SURFACE, "accepted")


#: What is no handle of the libraries', nor memory of theirs.
_NO_HANDLES = [0xDEADBEEF, 1, 8, 0x7FFF00001000, 2**63, 2**64 - 16, 0x4E47000000000000 + 1]


@pytest.mark.parametrize("function", test_aclnn.ORDER)
@cases(10)
@given(data=st.data())
def test_aclnn_misused(child: Child, function: str, data: Any) -> None:
    """A handle that is none, was destroyed, or is of another kind; memory that was freed."""
    call = data.draw(_acl_calls(function))
    blocks = Blocks(call.views, "aclnn")
    steps, arguments = _acl_steps(call, blocks)
    handles = [name for name, value in arguments.items() if isinstance(value, tuple)]
    looked_at = [name for name in handles if call.wanted.get(name, True)]
    tensors = [name for name in looked_at if name != "outputMask"]
    name = data.draw(st.sampled_from(looked_at))
    ways = ["made up", "destroyed", "another"]
    if name in tensors and math.prod(call.views[name].shape):
        ways += ["freed", "host memory", "outside"]
    way = data.draw(st.sampled_from(ways))
    read = blocks.read()
    if way == "made up":
        arguments[name] = data.draw(st.sampled_from(_NO_HANDLES))
    elif way == "destroyed":
        kind = "aclDestroyBoolArray" if name == "outputMask" else "aclDestroyTensor"
        steps.append((kind, [("made", name)]))
    elif way == "another":
        steps.append(("aclCreateBoolArray", [("bool", (True,)), 1], "another"))
        arguments[name] = ("made", "another" if name != "outputMask" else tensors[0])
    else:
        view = call.views[name]
        if way == "freed":
            steps.append(("aclrtFree", [("made", blocks.name(view))]))
            read = [step for step in read if step[1] != blocks.name(view)]
        else:
            step = _tensor_step(blocks, view, call.formats[name], "wrong")
            memory = ("bytes", bytes(view.arena.size))
            outside = ("behind", (blocks.name(view), view.arena.size - view.itemsize + 1))
            step[1][-1] = memory if way == "host memory" else outside
            if way == "outside":
                step[1][4] = 0
            steps.append(step)
            arguments[name] = ("made", "wrong")
    results = child.run([*steps, *_phases(function, arguments), *read])
    assert set(results[: len(steps)]) <= {0}
    status, _, second = results[len(steps) : len(steps) + 3]
    assert status == 161002, results[len(steps) :][:3]
    assert second == 161001  # no executor
    for step, content in zip(read, results[len(steps) + 3 :], strict=True):
        before = next(each for each in call.views.values() if blocks.name(each) == step[1])
        assert content == before.arena.tobytes()
    count(SURFACE, f"refused: {status}")


_DESCRIBE = "infiniopCreateTensorDescriptor"
_CREATE = "infiniopCreateBatchNormBackwardDescriptor"
_COMPUTE = "infiniopBatchNormBackward"
_ALL = (*test_infiniop.OUTPUTS, *test_infiniop.INPUTS)


def _infini_steps(views: dict[str, hostile.View], blocks: Blocks) -> list[Any]:
    steps = [*blocks.made(), ("infiniopCreateHandle", [("at", "handle")])]
    for name in _ALL:
        view = views[name]
        code = test_infiniop.DTYPES[view.dtype]
        arguments = [("at", name), len(view.shape), ("int64", view.shape), ("int64", view.steps)]
        steps.append((_DESCRIBE, [*arguments, code]))
    return steps


def _infini_run(pointers: dict[str, Any], descriptors: dict[str, Any]) -> list[Any]:
    return [
        (_CREATE, [descriptors["handle"], ("at", "op"), *(descriptors[name] for name in _ALL)]),
        ("infiniopGetBatchNormBackwardWorkspaceSize", [("made", "op"), ("at", "size")]),
        ("infinirtMalloc", [("at", "workspace"), ("count", "size")]),
        (_COMPUTE, [("made", "op"), ("made", "workspace"), ("count", "size"),
                    *(pointers[name] for name in _ALL), None]),
    ]  # fmt: skip


@cases(40)
@given(drawn=test_infiniop.tensors(), data=st.data())
def test_infiniop_calls(child: Child, drawn: Any, data: Any) -> None:
    """Legal calls, and such with a handle or a pointer that is none."""
    views, _ = drawn
    blocks = Blocks(views, "infiniop")
    steps = _infini_steps(views, blocks)
    pointers: dict[str, Any] = {
        name: ("behind", (blocks.name(views[name]), views[name].offset)) for name in _ALL
    }
    descriptors: dict[str, Any] = {name: ("made", name) for name in ("handle", *_ALL)}
    full = [name for name in _ALL if math.prod(views[name].shape)]
    way = data.draw(st.sampled_from(["legal", "handle", "destroyed", "pointer", "freed"]))
    legal = way == "legal" or (way in ("pointer", "freed") and not full)
    read = blocks.read()
    if way == "handle":
        name = data.draw(st.sampled_from(sorted(descriptors)))
        descriptors[name] = data.draw(st.sampled_from([None, *_NO_HANDLES]))
    elif way == "destroyed":
        name = data.draw(st.sampled_from(_ALL))
        steps.append(("infiniopDestroyTensorDescriptor", [("made", name)]))
    elif not legal:
        name = data.draw(st.sampled_from(full))
        if way == "pointer":
            pointers[name] = None
        else:
            steps.append(("infinirtFree", [("made", blocks.name(views[name]))]))
            read = [step for step in read if step[1] != blocks.name(views[name])]
    before = {name: np.array(views[name].array) for name in test_infiniop.INPUTS}
    watched = test_infiniop.watch(views)
    ended = [("infiniopDestroyBatchNormBackwardDescriptor", [("made", "op")])] * 2
    results = child.run([*steps, *_infini_run(pointers, descriptors), *read, *ended])
    assert set(results[: len(steps)]) <= {0}
    created, _, _, computed = results[len(steps) : len(steps) + 4]
    contents = results[len(steps) + 4 : -2]
    assert results[-2:] == ([3, 3] if created else [0, 3])
    if legal:
        assert (created, computed) == (0, 0)
        blocks.take_back(contents)
        watched.check_gaps()
        test_infiniop.check(views, before)
        count(SURFACE, "accepted")
    else:
        status = created or computed
        assert status == 3
        for step, content in zip(read, contents, strict=True):
            view = next(each for each in views.values() if blocks.name(each) == step[1])
            assert content == view.arena.tobytes()
        count(SURFACE, f"refused: {status}")


#: Arguments that are no pointers, and pointers to nothing.
_WORDS = [0, 1, 2, 3, 7, 12, 19, 64, -1, 2**31 - 1]
_POINTERS = [None, *_NO_HANDLES]
_HANDLES = {
    "aclTensor *", "aclBoolArray *", "aclOpExecutor *", "aclrtStream", "aclrtEvent", "aclrtContext",
    "infinirtStream_t", "infinirtEvent_t", "infiniopHandle_t", "infiniopTensorDescriptor_t",
    "infiniopBatchNormBackwardDescriptor_t",
}  # fmt: skip
_PARAMETERS = {
    each.name: [kind for kind, _ in each.parameters]
    for header in capi_child.HEADERS
    for each in header.functions
}


def _argument(draw: Any, kind: str) -> Any:
    plain = kind.removeprefix("const ")
    if plain in ("float", "double"):
        return draw(st.sampled_from([0.0, 1e-5, -1.0]))
    if plain == "bool":
        return draw(st.booleans())
    if "*" not in kind and not plain.endswith(("_t", "Stream", "Event", "Context")):
        return draw(st.sampled_from(_WORDS))
    if plain in ("size_t", "uint64_t", "uint32_t"):
        # What says how long an array is stays as long as the arrays are.
        return draw(st.sampled_from([0, 1, 2, 3]))
    if plain in ("int64_t", "int32_t"):
        return draw(st.sampled_from(_WORDS))
    if plain in _HANDLES:
        return draw(st.sampled_from([*_POINTERS, ("made", "stream"), ("made", "tensor")]))
    if not kind.endswith("*"):
        return draw(st.sampled_from(_WORDS))
    # Everything else is written or read through: room for anything, or none.
    return draw(st.sampled_from([("bytes", bytes(8192)), None]))


@cases(40)
@given(data=st.data())
def test_any_calls(child: Child, data: Any) -> None:
    """Some functions of the libraries, each with anything but less room than it says."""
    steps: list[Any] = [
        ("aclrtCreateStream", [("at", "stream")]),
        ("aclCreateTensor", [None, 0, 0, None, 0, 2, None, 0, None], "tensor"),
    ]
    for _ in range(data.draw(st.integers(1, 8))):
        name = data.draw(st.sampled_from(list(_PARAMETERS)))
        steps.append((name, [_argument(data.draw, kind) for kind in _PARAMETERS[name]]))
    results = child.run([*steps, ("aclInit", [None]), ("aclrtSetDevice", [0])])
    for (name, *_), result in zip(steps[2:], results[2:], strict=False):
        if name.startswith("infini"):
            assert result in {0, 1, *INFINI_STATUSES}, name
        elif isinstance(result, int) and name in _STATUSES:
            assert result in {0, *ACL_STATUSES, 100001, 100002, 100037, 107002, 561103}, name
    statuses = [
        result
        for (name, *_), result in zip(steps[2:], results[2:], strict=False)
        if name in _STATUSES or name.startswith("infini")
    ]
    refused = any(statuses)
    count(SURFACE, "refused: one of several" if refused else "accepted")


_STATUSES = {
    each.name
    for header in capi_child.HEADERS
    for each in header.functions
    if each.returns in ("aclError", "aclnnStatus")
}
