"""The judging process's side of the process that runs an implementation."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from multiprocessing.connection import Connection, Pipe
from typing import Any

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

#: Bytes from the end of a crashed process's output that are searched for its last line.
_TAIL = 1 << 12

#: Seconds between checks whether the other process still runs.
_GLANCE = 1.0

#: Not ``python -m``, which would let files in the current folder shadow libraries.
_START = (
    "import sys; sys.path[:] = [folder for folder in sys.path if folder]; "
    "from normgrad.testing.worker import start; start()"
)


def receive(connection: Connection, lives: Callable[[], bool], seconds: float = math.inf) -> Any:
    """Receive a message of a process of which ``lives`` says whether it still runs.

    The connection alone does not show it, since a helper that the implementation started may hold
    the other end open.

    Raises:
        TimeoutError: no message has come in time.
        EOFError, OSError: the other process has ended.
    """
    deadline = time.monotonic() + seconds
    while True:
        gone = not lives()  # before looking, so that all it sent before it ended is there
        if connection.poll(0 if gone else _GLANCE):
            return connection.recv()
        if gone:
            raise EOFError
        if time.monotonic() > deadline:
            raise TimeoutError


class Process:
    """An implementation's process, which is restarted when it ends or hangs."""

    def __init__(self, spec: str) -> None:
        self._spec = spec
        self._hung: Counter[str] = Counter()
        #: Why nothing more can be tried.
        self._over = ""
        self._start("alone")

    def _start(self, mode: str) -> None:
        self._log = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - closed in `end`
        self._connection, theirs = Pipe()
        self._process = subprocess.Popen(
            [sys.executable, "-c", _START, self._spec, str(theirs.fileno()), mode],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            pass_fds=[theirs.fileno()],
            start_new_session=True,
        )
        theirs.close()

    def hello(self) -> dict[str, Any]:
        """Receive the process's description of the implementation.

        Raises:
            SubjectError: the implementation could not be loaded.
        """
        try:
            found: dict[str, Any] | SubjectError = self._receive(PATIENCE)
        except Exception as error:  # what comes from a process gone wrong may raise anything
            has_ended = isinstance(error, EOFError | OSError) and type(error) is not TimeoutError
            reason = self._ending() if has_ended else "no answer"
            raise SubjectError(f"it cannot be loaded: {reason}") from None
        if isinstance(found, SubjectError):
            raise found
        return found

    def found(self, case: Case) -> Outcome | Judged:
        """The outcome of a case, or its verdict if the process crashes, hangs or was given up."""
        if self._over:
            return Judged(case, Verdict.CRASHED, detail=f"not tried: {self._over}")
        if self._hung[case.kind] >= MOST_HUNG:
            detail = f"not tried: {MOST_HUNG} of its kind have hung"
            return Judged(case, Verdict.HUNG, detail=detail)
        patience = LITTLE_PATIENCE if self._hung else PATIENCE
        try:
            return self._answer(case, time.monotonic() + patience)
        except TimeoutError:
            found = Judged(case, Verdict.HUNG, detail=f"no answer in {patience:g} s")
            self._hung[case.kind] += 1
        except (EOFError, OSError):
            found = Judged(case, Verdict.CRASHED, detail=self._ending())
        except Exception as error:  # as when it is loaded
            found = Judged(case, Verdict.CRASHED, detail=f"its answer cannot be read: {error}")
        self.end()
        self._start("forking")  # more crashes are likely, and a forked child is fast to replace
        try:
            self.hello()
        except SubjectError as error:
            self._over = f"{error}, after it crashed"
        return found

    def _answer(self, case: Case, deadline: float) -> Outcome | Judged:
        """The outcome of a case, or its verdict if the process's child crashes on it."""
        self._connection.send(case)
        message = None
        while message is None:  # the first message may only say that the case is being run
            message = self._receive(deadline - time.monotonic())
        answered, found = message
        if answered != case:
            raise ValueError("it is to another question")
        if isinstance(found, int):
            return Judged(case, Verdict.CRASHED, detail=self._ending(found))
        self._log.seek(0)  # where the process goes on writing, since it shares this position
        self._log.truncate()
        outcome: Outcome = found
        return outcome

    def _receive(self, patience: float) -> Any:
        return receive(self._connection, lambda: self._process.poll() is None, patience)

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
        log = self._log.fileno()
        printed = os.pread(log, _TAIL, max(0, os.fstat(log).st_size - _TAIL))
        lines = printed.decode(errors="replace").split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "")
        return f"{how}: {last}" if last else how

    def end(self) -> None:
        """Kill the process."""
        self._connection.close()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._log.close()
