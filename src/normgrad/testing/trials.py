"""Trying an implementation in a process of its own, case by case."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from . import wire
from .cases import Case
from .outcomes import Judged, Outcome, Verdict
from .subjects import SubjectError
from .suites import SUITES

#: A case that takes longer hangs: none takes a second, but kernels may have to be compiled first,
#: by a machine that has other things to do.
PATIENCE = 300.0

#: So much of what a process that crashed has written is looked at for its last line.
_TAIL = 4096


class _CrashedError(Exception):
    """The process ended; the text says how."""


class _Process:
    """An implementation's process.

    Attributes:
        lives: whether it, or a child of it, can be asked.
    """

    lives = True

    def __init__(self, spec: str, quick: bool, forking: bool = False) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed in `end`
        theirs_in, self._out = os.pipe()
        self._in, theirs_out = os.pipe()
        modes = ["quick" if quick else "all", "forking" if forking else "alone"]
        words = [spec, *modes, str(theirs_in), str(theirs_out)]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "normgrad.testing.worker", *words],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            pass_fds=(theirs_in, theirs_out),
            start_new_session=True,
        )
        os.close(theirs_in)
        os.close(theirs_out)

    def hello(self) -> dict[str, Any]:
        """What the process says of the implementation.

        Raises:
            SubjectError: it could not be loaded.
        """
        try:
            header, _ = wire.receive(self._in, PATIENCE)
        except (EOFError, wire.SilenceError, ValueError) as error:
            reason = self.ending() if isinstance(error, EOFError) else "no answer"
            raise SubjectError(f"it cannot be loaded: {reason}") from None
        if "failed" in header:
            raise SubjectError(str(header["failed"]))
        return header

    def ask(self, case: Case) -> None:
        """Have a case run. That the process is gone shows in the answer."""
        with contextlib.suppress(BrokenPipeError):
            wire.send(self._out, {"case": case.name}, {})

    def answer(self) -> Outcome:
        """What came of the case asked for first.

        Raises:
            _CrashedError: the process has ended, or the child that computes.
            wire.SilenceError: it has not answered in time.
        """
        try:
            header, arrays = wire.receive(self._in, PATIENCE)
            if "crashed" in header:
                raise _CrashedError(self.ending(int(header["crashed"])))
            return wire.outcome_of(header, arrays)
        except EOFError:
            self.lives = False
            raise _CrashedError(self.ending()) from None
        except wire.SilenceError:
            self.lives = False
            raise
        except (ValueError, KeyError, TypeError) as error:
            self.lives = False
            raise _CrashedError(f"its answer cannot be read: {error}") from None

    def ending(self, code: int | None = None) -> str:
        """How the process or its child ended, and the last that it wrote."""
        if code is None:
            code = self._process.wait()
        how = f"exit status {code}"
        if code < 0:
            with contextlib.suppress(ValueError):
                how = signal.Signals(-code).name
        self._log.seek(max(0, self._log.seek(0, os.SEEK_END) - _TAIL))
        lines = self._log.read().decode(errors="replace").split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "")
        return f"{how}: {last}" if last else how

    def end(self) -> None:
        """End the process, whatever it is doing."""
        for descriptor in (self._out, self._in):
            os.close(descriptor)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._log.close()


@dataclass(frozen=True)
class Trial:
    """An implementation, tried.

    Attributes:
        spec: how it was named.
        name: what it calls itself.
        suite: what it was tried with, one of ``SUITES``.
        facts: what it says of itself.
        strict: whether it must accept all that normgrad does.
        judged: the cases in their order.
    """

    spec: str
    name: str
    suite: str
    facts: Mapping[str, str]
    strict: bool
    judged: tuple[Judged, ...]

    @property
    def passed(self) -> bool:
        """Whether no caller was deceived or ended; and, of a strict one, none refused."""
        return not any(
            each.verdict.is_defect or (self.strict and each.verdict is not Verdict.MET)
            for each in self.judged
        )


def try_cases(
    spec: str,
    quick: bool = False,
    wanted: Callable[[Case], bool] = lambda case: True,
    started: Callable[[str, int], None] = lambda name, count: None,
    progress: Callable[[Judged], None] = lambda judged: None,
) -> Trial:
    """Try an implementation with the suite.

    Args:
        spec: as :func:`normgrad.testing.load` takes it.
        quick: a part of the suite.
        wanted: which of its cases.
        started: is told the implementation's name and the number of cases, before the first.
        progress: is told each case's verdict as it comes.

    Raises:
        SubjectError: there is no such implementation.
    """
    strict = spec.partition(":")[0] == "normgrad"
    process = _Process(spec, quick)
    try:
        hello = process.hello()
        name, facts, suite = str(hello["name"]), hello["facts"], SUITES[hello["suite"]]
        cases = [case for case in suite.cases(quick, facts) if wanted(case)]
        started(name, len(cases))
        judged = []
        waiting, asked = deque(cases), deque[Case]()
        while waiting or asked:
            # One ahead: while one is judged the next is computed.
            while waiting and len(asked) < 2:
                asked.append(waiting.popleft())
                process.ask(asked[-1])
            case = asked.popleft()
            try:
                outcome = process.answer()
            except (_CrashedError, wire.SilenceError) as error:
                crashed = isinstance(error, _CrashedError)
                verdict = Verdict.CRASHED if crashed else Verdict.HUNG
                detail = str(error) if crashed else f"no answer in {PATIENCE:g} s"
                judged.append(Judged(case, verdict, detail=detail))
                if not process.lives:
                    waiting.extendleft(reversed(asked))
                    asked.clear()
                    process.end()
                    # What crashes once will again.
                    process = _Process(spec, quick, forking=True)
                    process.hello()
            else:
                judged.append(suite.judge(case, outcome, strict))
            progress(judged[-1])
    finally:
        process.end()
    return Trial(spec, name, str(hello["suite"]), facts, strict, tuple(judged))
