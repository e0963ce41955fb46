"""A schedule's steps and their order. cuts.py says how their work is divided into tasks."""

from __future__ import annotations

from typing import NamedTuple

from ....declarations.problem import Problem
from ....tensors import dtypes
from . import block as B
from .cuts import Cut, in_one_task, of_columns, over_channels, walks_forward, walks_once
from .layout import ALONG, Layout

#: The operation for moments in float64: for gradients, which use them unrounded, and for float32
#: and float64 data. So the computed mean is the nearest float32, from which every element's
#: deviation is exact.
EXACT = "exact moments"

#: The names of the arithmetic's flags, in the order in which it is done.
_WORDS = {flag: name[3:].lower() for name, flag in vars(B).items() if name.startswith("DO_")}


#: The cuts of a problem's steps: over tensors and over channels.
_Cuts = tuple[Cut, Cut]


class Step(NamedTuple):
    """One step of a schedule: a cut of the tensors or channels, and what each task does.

    Attributes:
        cut: how the tensors or channels are divided into tasks.
        before, after, last: the arithmetic before and after the sums, and after all sets, as flags.
        sums, write: the operations of the kernels that sum and write, or None.
        along: the operation, or None, that sums the gradients of parameters along the rows; it may
            write dx too.
    """

    cut: Cut
    before: int = 0
    sums: str | None = None
    after: int = 0
    write: str | None = None
    along: str | None = None
    last: int = 0

    @property
    def name(self) -> str:
        """The step's name: its kinds of arithmetic and its kernels, in their order."""

        def named(flags: int) -> list[str]:
            return [word for flag, word in _WORDS.items() if flags & flag]

        words = [*named(self.before), self.sums, *named(self.after), self.write]
        words += [self.along, *named(self.last)]
        return "+".join(word for word in words if word)

    def fields(self) -> dict[int, int]:
        """The values of a step's fields (see block.py), without the units' addresses."""
        cut = self.cut
        return {
            B.TASKS: cut.tasks,
            B.SETS_PER_TASK: cut.sets_per_task,
            B.ALL_CHANNELS: cut.all_channels,
            B.CHANNEL_BLOCK: cut.channel_block,
            B.PARTS: cut.parts,
            B.PART_SIZE: cut.part_size,
            B.AT_ONCE: cut.at_once,
            B.PIECE_CHANNELS: cut.piece_channels,
            B.PIECE_ROWS: cut.piece_rows,
            B.THREADS: cut.parallel and cut.tasks > 1,
            B.BEFORE: self.before,
            B.AFTER: self.after,
            B.LAST: self.last,
            B.SUMS_USES: _uses(self.sums),
            B.WRITE_USES: _uses(self.write),
            B.PARAMETER_USES: _uses(self.along) | _uses(self.write) & B.USES_DX,
        }


def _uses(operation: str | None) -> int:
    """The data tensors that a kernel reads or writes, as bits."""
    if operation is None:
        return 0
    name = operation.removesuffix(ALONG)
    dy = 0 if name in ("moments", EXACT, "normalise", "forward") else B.USES_DY
    x = 0 if name == "scale" else B.USES_X
    dx = 0 if name in ("sums", "moments", EXACT, "parameters", "gradients") else B.USES_DX
    return dy | x | dx


def _apart(
    cuts: _Cuts, before: int, sums: str | None, after: int, write: str | None = None, last: int = 0
) -> list[Step]:
    """The steps of a pass over tensors whose sums come in parts: sums, combination, writing."""
    tensors, channels = cuts
    steps = [Step(channels, before)] if before else []
    if sums:
        steps.append(Step(tensors, sums=sums))
        steps.append(Step(channels, B.DO_COMBINE | after, last=last))
    return [*steps, Step(tensors, write=write)] if write else steps


def _pass(
    cuts: _Cuts, before: int, sums: str | None, after: int, write: str | None = None
) -> list[Step]:
    """The steps of a pass over tensors; it is one step if a task has all of its positions."""
    tensors, _ = cuts
    if tensors.parts == 1:
        return [Step(tensors, before, sums, after, write)]
    return _apart(cuts, before, sums, after, write)


def _rounds(problem: Problem, last: int) -> list[int]:
    """The arithmetic after each round of moments.

    In float64 arithmetic the mean takes a round of its own, since squares about any other point
    would lose the precision that only float32 data can spare.
    """
    twice = problem.missing_mean and problem.arithmetic is dtypes.float64
    return [B.DO_MEAN, last] if twice else [last]


def _forward(layout: Layout, cuts: _Cuts) -> list[Step]:
    """The steps of a forward pass, or of statistics alone."""
    problem = layout.problem
    write = None if problem.result is None else "normalise" + ALONG * layout.along
    coefficients = B.DO_COEFFICIENTS if write else 0
    steps = [Step(in_one_task(), last=B.DO_WEIGHTS)] if layout.along and write else []
    before = B.DO_PREPARE
    if not problem.missing_invstd:
        return steps + _pass(cuts, before | coefficients, None, 0, write)
    if walks_forward(layout):
        return [*steps, Step(cuts[0], sums="forward" + ALONG, after=B.DO_STATISTICS)]
    moments = "moments" if layout.dtype.is_half else EXACT
    *rounds, last = _rounds(problem, B.DO_STATISTICS | coefficients)
    for finish in rounds:
        steps += _pass(cuts, before, moments, finish)
        before = 0
    return steps + _pass(cuts, before, moments, last, write)


def _backward(layout: Layout, cuts: _Cuts) -> list[Step]:
    """The steps of gradients."""
    problem, along = layout.problem, layout.along
    tensors, channels = cuts
    needs_sums = problem.result_needs_sums if along else problem.needs_sums
    sums = "sums" + ALONG * along if needs_sums else None
    write = None
    if problem.result is not None:
        write = "scale" if problem.constant else "apply" + ALONG * along
    steps: list[Step] = []
    if problem.counts is not None:
        steps.append(Step(in_one_task(), last=B.DO_COUNT))
    if along:
        steps.append(Step(in_one_task(), last=B.DO_WEIGHTS))
    before = B.DO_PREPARE
    if (problem.missing_mean or problem.missing_invstd) and not walks_once(layout):
        for finish in _rounds(problem, B.DO_STATISTICS):
            steps += _apart(cuts, before, EXACT, finish)
            before = 0
    after = outputs = 0
    if sums:
        after = B.DO_CENTRE if problem.missing_mean or problem.splits_mean else 0
    if problem.wants_parameters:
        # The gradients of parameters along rows are sums down the columns.
        after |= 0 if along else B.DO_PARAMETERS
        outputs = B.DO_OUTPUTS
    coefficients = B.DO_COEFFICIENTS if write else 0
    if problem.result_needs_sums:
        after |= coefficients
    else:
        # dx does not depend on the sums, and is written with them.
        before |= coefficients
        if sums and write:
            sums, write = "evaluate", None
    if layout.in_pieces:
        columns = Step(of_columns(layout, tensors), along="parameters" + ALONG if outputs else None)
        if needs_sums and tensors.parts == 1:
            # The parameters' sums come first, since dx may overwrite what is summed.
            first = [Step(channels, before), columns] if outputs else []
            return [*steps, *first, Step(tensors, 0 if first else before, sums, after, write)]
        steps += _pass(cuts, before, sums, after) if needs_sums else [Step(channels, before)]
        return [*steps, columns._replace(write=write)]
    if tensors.parts > 1:
        return [*steps, *_apart(cuts, before, sums, after, write, outputs)]
    # Batch norm's outputs follow from one set; group norm's are sums over all sets, and come last.
    one = layout.together == 1 and (layout.sets.size == 1 or tensors.tasks == 1)
    last = outputs if one and not along else 0
    if layout.sets.size == 1:
        after, last = after | last, 0
    step = Step(tensors, before, sums, after, write, last=last)
    if walks_once(layout):
        step = Step(tensors, before, write=write, along="gradients" + ALONG)
    elif along and outputs:
        step = step._replace(along="parameters" + ALONG)
    steps.append(step)
    if outputs and not (last or after & outputs):
        parameters = over_channels(
            layout, layout.parameters // layout.shared, tensors.copies, per_group=problem.per_group
        )
        steps.append(Step(parameters, last=outputs))
    return steps


def _without_tensors(layout: Layout) -> tuple[Step, ...]:
    """The step that combines the ranks' statistics; or those for no elements, whose sums are 0."""
    problem = layout.problem
    if problem.gathers and not problem.is_empty:
        ranks = problem.counts.elements if problem.counts else 1
        return (Step(over_channels(layout, problem.channel.size, ranks), last=B.DO_GATHER),)
    channels = problem.channel.size if problem.forward else problem.parameters
    if not problem.wants_parameters or channels == 0:
        return ()
    if problem.forward:
        return (Step(in_one_task(channels, problem.sets.size), before=B.DO_STATISTICS),)
    return (Step(in_one_task(channels), last=B.DO_OUTPUTS),)


def steps_of(layout: Layout, cut: Cut | None) -> tuple[Step, ...]:
    """A problem's steps, which run one after the other, the tasks of each in any order.

    ``cut`` is that of its passes over tensors, if it has any.
    """
    if cut is None:
        return _without_tensors(layout)
    channels, sets, problem = layout.channel.size, layout.sets.size, layout.problem
    cuts = cut, over_channels(layout, channels, cut.copies, sets, problem.per_group)
    return tuple(_forward(layout, cuts) if problem.forward else _backward(layout, cuts))
