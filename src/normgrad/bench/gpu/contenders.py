"""Who runs on a case's tensors: ours, and torch's operators, layers and compiler.

Each is a call that takes the next of several copies of the tensors every time: what a call finds in
L2 because the one before it left it there, a training does not find there. Of what cannot be run,
or computes something else than ours, the reason is kept and nothing is timed.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .. import compositions, contenders, data, layers
from ..compositions import Call
from ..contenders import Contender
from ..data import Data
from ..suite import BFLOAT16, FLOAT16, FLOAT32, Case, Part
from .device import Device

#: The calls that are not other people's, as they are called on the CPU.
MINE = ("ours", "out", "plan", "bound")
#: What torch.compile's is called in tables and files.
COMPILED = "torch.compile"

#: What goes through L2 before a copy is used again, in terms of L2's size.
TIMES_L2 = 2
#: Tensors so small that this many copies do not exceed L2 take the time of launching kernels.
MOST_COPIES = 256
#: How much of the free memory the copies may take: the rest is for results and temporaries.
MEMORY_SHARE = 0.5
#: The tensors of a copy: dy, x, and an output for ours and for what stands for the memory.
TENSORS = 4

#: How far a contender's results may be from ours, in terms of the largest of them: 8 units of
#: roundoff of halves, which some round three times on the way, and 2¹³ of float32, in which others
#: sum up to millions of terms. A kernel that computes something else is further off.
AGREE = {FLOAT32: 2**-11, BFLOAT16: 2**-5, FLOAT16: 2**-8}


@dataclass(frozen=True)
class Ready:
    """What is timed on a case, and what is not.

    Attributes:
        calls: by name: :data:`MINE`, of a layer "ours" alone, then the others'.
        failed: why others were left out, by name.
        bound: what stands for the memory; empty for a layer.
        path: our plan's passes and launches, in words; empty for a layer.
    """

    calls: Mapping[str, Contender]
    failed: Mapping[str, str]
    bound: str
    path: str


def copies(tensor_bytes: int, l2: int, free: int) -> int:
    """How many copies of a case's tensors are gone through.

    Args:
        tensor_bytes: of one of its tensors.
        l2: the device's L2, in bytes.
        free: the device's free memory, in bytes.
    """
    # Between two uses of a copy there are the others, of which a call reads a tensor at least.
    wanted = 1 + math.ceil(TIMES_L2 * l2 / tensor_bytes)
    fitting = int(free * MEMORY_SHARE) // (TENSORS * tensor_bytes)
    return max(1, min(wanted, MOST_COPIES, fitting))


def tensors(case: Case, device: Device) -> list[Data]:
    """A case's tensors, as many times as :func:`copies` says."""
    count = copies(case.tensor_bytes, device.l2, device.free())
    return [data.make(case, seed, device.name) for seed in range(count)]


def gather(torch: Any, case: Case, tensors: Sequence[Data], compile_: bool) -> Ready:
    """Make ready everything that is timed on a case; each has run once on each copy.

    Args:
        torch: the module.
        case: what is computed.
        tensors: the copies of its tensors.
        compile_: whether torch.compile competes.

    Raises:
        Exception: ours cannot compute it, whatever the reason.
    """
    bound = path = ""
    if case.operator.part is Part.LAYERS:
        mine = [{"ours": layers.step(torch, layers.OURS, case, one)} for one in tensors]
    else:
        plan = contenders.planned(torch, case, tensors[0])
        path = plan.path
        mine = []
        for one in tensors:
            bound, memory = contenders.memory_bound(torch, case, one)
            mine.append({**contenders.ours(torch, case, one, plan), "bound": memory})
    wanted = _outputs(case, mine[0]["ours"]())
    torch.compiler.reset()  # what is compiled for other cases counts towards a limit
    theirs = [_theirs(torch, case, one, compile_) for one in tensors]
    calls, failed = {name: _in_turn(mine, name) for name in mine[0]}, {}
    for name, first in theirs[0].items():
        try:
            wrong = disagreement(_outputs(case, first()), wanted)
            if wrong is None:
                calls[name] = _in_turn(theirs, name)
        except Exception as error:  # of any kind: it is not ours
            wrong = reason(error)
        if wrong is not None:
            failed[name] = wrong
    return Ready(calls, failed, bound, path)


def _theirs(torch: Any, case: Case, one: Data, compile_: bool) -> dict[str, Call]:
    """torch's layer; or its operators, and the first composition without any of them, compiled."""
    if case.operator.part is Part.LAYERS:
        name = f"{layers.THEIRS}.{case.operator.function}"
        return {name: layers.step(torch, layers.THEIRS, case, one)}
    found = compositions.candidates(torch, case, one)
    calls = dict(found.kernels)
    if compile_:
        plain = next(call for name, call in found.compositions.items() if "aten::" not in name)
        calls[COMPILED] = torch.compile(plain, dynamic=False, fullgraph=True)
    return calls


def _in_turn(each: Sequence[Mapping[str, Call]], name: str) -> Contender:
    """The calls of that name, the next one every time; each runs once."""
    calls = [one[name] for one in each]
    for call in calls:
        call()
    turns = itertools.cycle(calls)
    return Contender(lambda: next(turns)(), "cuda")


def reason(error: BaseException) -> str:
    """An error on one line, without what others put after it."""
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {text}"[:200] if text else type(error).__name__


def _outputs(case: Case, results: Any) -> list[Any]:
    """What all give alike: not the running statistics, which each updates as often as it runs."""
    given = [results] if hasattr(results, "shape") else list(results)
    # Of batch norm's forward pass there are y, mean and invstd.
    return given[:3] if case.operator.part is Part.FORWARD else given


def disagreement(theirs: Sequence[Any], mine: Sequence[Any]) -> str | None:
    """In which output a contender is further from ours than roundings explain; None for nowhere.

    What either leaves out, and what has no elements, is not compared.
    """
    for index, (other, own) in enumerate(zip(theirs, mine, strict=False)):
        if other is None or own is None or not own.numel() or not other.numel():
            continue
        if other.numel() != own.numel():
            shapes = f"{tuple(other.shape)} instead of {tuple(own.shape)}"
            return f"disagrees: output {index} has shape {shapes}"
        names = (str(tensor.dtype).removeprefix("torch.") for tensor in (other, own))
        allowed = max(AGREE.get(name, AGREE[FLOAT32]) for name in names)
        own = own.detach().float()
        scale = own.abs().max().item()
        off = (other.detach().float().reshape(own.shape) - own).abs().max().item()
        if not off <= allowed * scale:  # nor if either is not a number
            relative = off / scale if scale else math.inf
            return f"disagrees: output {index} is off by {relative:.2g} of the largest"
    return None
