"""Run an implementation in a separate process, where a crash loses only one case."""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection, Pipe
from multiprocessing.context import ForkProcess
from typing import Any, NoReturn

from .cases import Case
from .outcomes import Judged, Outcome, Verdict
from .subjects import Implementation, Runner, SubjectError
from .suites import load

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
    "from normgrad.testing.process import start; start()"
)

#: The constant in <sys/prctl.h>.
_PR_SET_PDEATHSIG = 1


def _receive(connection: Connection, lives: Callable[[], bool], seconds: float = math.inf) -> Any:
    """Receive a message of a process of which ``lives`` says whether it still runs.

    The connection alone does not show it, since a program that the implementation started may hold
    the other end open. It raises a TimeoutError without a message in time, and an EOFError or
    OSError if the process has ended.
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


class Process(Runner):
    """An implementation in a process of its own, which is restarted when it ends or hangs.

    ``spec`` is its name, as :func:`.suites.load` takes it.
    """

    def __init__(self, spec: str) -> None:
        self._spec = spec
        self._hung: Counter[str] = Counter()
        self._end_reason = ""
        self._start("alone")
        try:
            self.name, self.suite, self.strict, self.facts = self._description()
        except BaseException:
            self.end()
            raise

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

    def _description(self) -> tuple[str, str, bool, dict[str, str]]:
        """Receive the implementation's name, suite, strictness and facts, or a SubjectError."""
        try:
            description: Any = self._receive(PATIENCE)
        except Exception as error:  # what comes from a process gone wrong may raise anything
            has_ended = isinstance(error, EOFError | OSError) and type(error) is not TimeoutError
            reason = self._ending() if has_ended else "no answer"
            raise SubjectError(f"it cannot be loaded: {reason}") from None
        if isinstance(description, SubjectError):
            raise description
        name, suite, strict, facts = description
        return name, suite, strict, facts

    def run(self, case: Case) -> Outcome | Judged:
        """The outcome of a case, or its verdict if the process crashes, hangs or was given up."""
        if self._end_reason:
            return Judged(case, Verdict.CRASHED, detail=f"not tried: {self._end_reason}")
        if self._hung[case.kind] >= MOST_HUNG:
            detail = f"not tried: {MOST_HUNG} of its kind have hung"
            return Judged(case, Verdict.HUNG, detail=detail)
        patience = LITTLE_PATIENCE if self._hung else PATIENCE
        try:
            return self._answer(case, time.monotonic() + patience)
        except TimeoutError:
            judged = Judged(case, Verdict.HUNG, detail=f"no answer in {patience:g} s")
            self._hung[case.kind] += 1
        except (EOFError, OSError):
            judged = Judged(case, Verdict.CRASHED, detail=self._ending())
        except Exception as error:  # as when it is loaded
            judged = Judged(case, Verdict.CRASHED, detail=f"its answer cannot be read: {error}")
        self.end()
        self._start("forking")  # more crashes are likely, and a forked child is fast to replace
        try:
            self._description()
        except SubjectError as error:
            self._end_reason = f"{error}, after it crashed"
        return judged

    def _answer(self, case: Case, deadline: float) -> Outcome | Judged:
        """The outcome of a case, or its verdict if the process's child crashes on it."""
        self._connection.send(case)
        message = None
        while message is None:  # the first message may only say that the case is being run
            message = self._receive(deadline - time.monotonic())
        answered_case, outcome = message
        if answered_case != case:
            raise ValueError("it is to another question")
        if isinstance(outcome, int):
            return Judged(case, Verdict.CRASHED, detail=self._ending(outcome))
        self._log.seek(0)  # where the process goes on writing, since it shares this position
        self._log.truncate()
        assert isinstance(outcome, Outcome)
        return outcome

    def _receive(self, patience: float) -> Any:
        return _receive(self._connection, lambda: self._process.poll() is None, patience)

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


# In the other process


def start() -> NoReturn:
    """Load the implementation, send its description, and run cases until none can come.

    The process's arguments are the implementation's name, the descriptor of the connection to the
    judging process, and "forking" if cases run in a child, which is replaced when it crashes: that
    is quick, where loading PyTorch again takes seconds.
    """
    spec, descriptor, mode = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the judging process will end this one
    _end_with_parent()
    os.set_inheritable(descriptor, False)  # programs that it starts must not hold the connection
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    judge: Connection = Connection(descriptor)
    try:
        subject = load(spec)
    except SubjectError as error:
        judge.send(error)
    else:
        judge.send((subject.name, subject.suite, subject.strict, subject.facts))
        (_relay if mode == "forking" else _serve)(judge, subject)
    # Exit at once, without waiting for threads that the implementation left running.
    sys.stdout.flush()
    os._exit(0)


def _cases(connection: Connection) -> Iterator[Case]:
    """The cases to run, as they arrive, until the other process has ended."""
    with contextlib.suppress(EOFError, OSError):
        while True:
            yield connection.recv()


def _serve(judge: Connection, subject: Implementation, *others: Connection) -> None:
    """Answer each case with itself and its outcome; close the other connections first."""
    _end_with_parent()
    for each in others:
        each.close()
    for case in _cases(judge):
        judge.send(None)  # the case is read: from here on a crash is its doing
        outcome = subject.run(case)
        sys.stdout.flush()
        judge.send((case, outcome))


def _relay(judge: Connection, subject: Implementation) -> None:
    """Have a child answer; if it ends on a case, its exit code stands in the outcome's place."""
    child: ForkProcess | None = None
    for case in _cases(judge):
        is_read, answer = False, None
        while answer is None:
            if child is None or not child.is_alive():
                ours, theirs = Pipe()
                child = ForkProcess(target=_serve, args=(theirs, subject, ours, judge))
                child.start()
                theirs.close()
            try:
                ours.send(case)
                is_read = _receive(ours, child.is_alive) is None
                answer = _receive(ours, child.is_alive)
            except (EOFError, OSError):
                child.join()
                if is_read:  # else it ended on its own, and the next child answers
                    answer = (case, child.exitcode)
        judge.send(answer)


def _end_with_parent() -> None:
    """Have the system kill this process when its parent ends; only Linux can."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
