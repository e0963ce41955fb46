"""Run an implementation in a separate process, where a crash loses only one case."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import select
import signal
import sys
from typing import NoReturn

from . import wire
from .subjects import SubjectError
from .suites import SUITES, load


def main(spec: str, quick: bool, forking: bool, read: int, write: int) -> None:
    """Load the implementation, send its description, and answer questions until the pipe closes.

    Args:
        spec: the implementation, as :func:`.suites.load` takes it.
        quick: whether cases are from a quick run's part of the suite.
        forking: whether cases run in a child, which is replaced when it crashes: that is quick,
            where loading PyTorch again takes seconds.
        read, write: the descriptors of questions and answers.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that asks will end this one
    _end_with_parent()
    for descriptor in (read, write):
        os.set_inheritable(descriptor, False)  # programs that it starts must not hold the pipes
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        subject = load(spec)
    except SubjectError as error:
        wire.send(write, {"failed": str(error)})
        return
    facts = subject.facts
    cases = {case.name: case for case in SUITES[subject.suite].cases(quick, facts)}
    hello = {"name": subject.name, "suite": subject.suite, "strict": subject.strict}
    wire.send(write, {**hello, "facts": facts})
    while forking:
        child = os.fork()
        if child == 0:
            _end_with_parent()
            break
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if _is_closed(read):  # else the implementation has ended the child, if with status 0
            return
        wire.send(write, {"crashed": code})
    for question in wire.questions(read):
        if "ping" in question:
            wire.send(write, {"pong": question["ping"]})
            continue
        outcome = subject.run(cases[question["case"]])
        sys.stdout.flush()
        answer = {"case": question["case"], "written": _written()}
        wire.send(write, answer | wire.written(outcome))


def _is_closed(descriptor: int) -> bool:
    """Whether no process holds the write end of a pipe any more."""
    poll = select.poll()
    poll.register(descriptor, 0)
    return any(event & select.POLLHUP for _, event in poll.poll(0))


def _written() -> int:
    """The number of bytes printed so far, into the file that the other process reads."""
    return os.lseek(sys.__stderr__.fileno(), 0, os.SEEK_CUR) if sys.__stderr__ else 0


def _end_with_parent() -> None:
    """Have the system kill this process when its parent ends; only Linux can."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


#: The constant in <sys/prctl.h>.
_PR_SET_PDEATHSIG = 1


def start() -> NoReturn:
    """Run main with the process's arguments, then exit."""
    main(sys.argv[1], sys.argv[2] == "quick", sys.argv[3] == "forking", *map(int, sys.argv[4:6]))
    # Exit at once, without waiting for threads that the implementation left running.
    sys.stdout.flush()
    os._exit(0)
