"""The judging process's side of the process that runs an implementation."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from typing import Any

from . import wire
from .cases import Case
from .outcomes import Judged, Outcome, Verdict
from .subjects import SubjectError

#: Seconds after which a case counts as hung. No case computes for a second, but a busy machine may
#: have to compile kernels first.
PATIENCE = 300.0
#: Seconds after which a case counts as hung once another has.
LITTLE_PATIENCE = 30.0

#: When this many cases of a kind have hung, the kind's other cases are not tried.
MOST_HUNG = 3

#: Seconds that a process may take to end after it has closed its pipes.
_LAST_BREATH = 10.0

#: Bytes from the end of a crashed process's output that are searched for its last line, and bytes
#: of output above which the log is emptied.
_TAIL, _MOST_WRITTEN = 1 << 12, 1 << 24

#: Not ``python -m``, which would let files in the current folder shadow libraries.
_START = (
    "import sys; sys.path[:] = [folder for folder in sys.path if folder]; "
    "from normgrad.testing.worker import start; start()"
)


class Process:
    """An implementation's process, which is restarted when it ends or hangs."""

    def __init__(self, spec: str, quick: bool) -> None:
        self._spec, self._quick = spec, quick
        self._hung: Counter[str] = Counter()
        #: Why nothing more can be tried.
        self._over = ""
        self._start("alone")

    def _start(self, mode: str) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed in `end`
        self._written = self._pings = 0
        self._unread = bytearray()
        theirs_in, self._out = os.pipe()
        self._in, theirs_out = os.pipe()
        modes = ["quick" if self._quick else "all", mode]
        self._process = subprocess.Popen(
            [sys.executable, "-c", _START, self._spec, *modes, str(theirs_in), str(theirs_out)],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            pass_fds=(theirs_in, theirs_out),
            start_new_session=True,
        )
        os.close(theirs_in)
        os.close(theirs_out)

    def hello(self) -> dict[str, Any]:
        """Receive the process's description of the implementation.

        Raises:
            SubjectError: the implementation could not be loaded.
        """
        try:
            header = self._receive(PATIENCE)
        except (EOFError, wire.SilenceError, ValueError) as error:
            reason = self._ending() if isinstance(error, EOFError) else "no answer"
            raise SubjectError(f"it cannot be loaded: {reason}") from None
        if "failed" in header:
            raise SubjectError(str(header["failed"]))
        return header

    def found(self, case: Case) -> Outcome | Judged:
        """The outcome of a case, or its verdict if the process crashes, hangs or was given up."""
        if self._over:
            return Judged(case, Verdict.CRASHED, detail=f"not tried: {self._over}")
        if self._hung[case.kind] >= MOST_HUNG:
            detail = f"not tried: {MOST_HUNG} of its kind have hung"
            return Judged(case, Verdict.HUNG, detail=detail)
        patience = LITTLE_PATIENCE if self._hung else PATIENCE
        try:
            return self._answer(case, patience)
        except EOFError:
            found = Judged(case, Verdict.CRASHED, detail=self._ending())
        except wire.SilenceError:
            found = Judged(case, Verdict.HUNG, detail=f"no answer in {patience:g} s")
            self._hung[case.kind] += 1
        except (ValueError, KeyError, TypeError) as error:
            found = Judged(case, Verdict.CRASHED, detail=f"its answer cannot be read: {error}")
        self.end()
        self._start("forking")  # more crashes are likely, and a forked child is fast to replace
        try:
            self.hello()
        except SubjectError as error:
            self._over = f"{error}, after it crashed"
        return found

    def _answer(self, case: Case, patience: float) -> Outcome | Judged:
        """The outcome of a case, or its verdict if the process's child crashes on it.

        Raises:
            EOFError, wire.SilenceError: the process has ended, or has not answered in time.
            ValueError, KeyError, TypeError: its answer cannot be read.
        """
        deadline = time.monotonic() + patience
        self._ask({"case": case.name})
        endings: list[str] = []
        while True:
            header = self._receive(deadline - time.monotonic())
            if "crashed" in header:
                # Did the crashed child read the case? If not, the next child answers the case.
                # If so, the next child finds only the ping.
                endings.append(self._ending(int(header["crashed"])))
                self._pings += 1
                self._ask({"ping": self._pings})
            elif "pong" in header:
                if endings and header["pong"] == self._pings:
                    return Judged(case, Verdict.CRASHED, detail=endings[0])
            elif header["case"] != case.name:
                raise ValueError("it is to another question")
            else:
                self._note(int(header["written"]))
                return wire.outcome_of(header)

    def _note(self, written: int) -> None:
        """Note how much the process has printed so far, and empty a log that is too long."""
        self._written = written
        handle = self._log.fileno()
        if self._written > _MOST_WRITTEN:
            os.ftruncate(handle, 0)
            os.lseek(handle, 0, os.SEEK_SET)  # the process shares this offset
            self._written = 0

    def _ask(self, question: dict[str, Any]) -> None:
        with contextlib.suppress(BrokenPipeError):
            wire.send(self._out, question)

    def _receive(self, patience: float) -> dict[str, Any]:
        return wire.receive(self._in, self._unread, patience, lambda: self._process.poll() is None)

    def _ending(self, code: int | None = None) -> str:
        """How the process or its child ended, and its last output since its last answer."""
        if code is None:
            try:
                code = self._process.wait(_LAST_BREATH)
            except subprocess.TimeoutExpired:
                return "it closed its pipe"
        how = f"exit status {code}"
        if code < 0:
            with contextlib.suppress(ValueError):
                how = signal.Signals(-code).name
        handle = self._log.fileno()
        end = os.fstat(handle).st_size
        start = max(self._written, end - _TAIL)
        lines = os.pread(handle, end - start, start).decode(errors="replace").split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "")
        return f"{how}: {last}" if last else how

    def end(self) -> None:
        """Kill the process."""
        for descriptor in (self._out, self._in):
            os.close(descriptor)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._log.close()
