"""Run an implementation in a separate process, where a crash loses only one case."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import sys
from collections.abc import Iterator
from multiprocessing.connection import Connection, Pipe
from multiprocessing.context import ForkProcess
from typing import NoReturn

from .cases import Case
from .process import receive
from .subjects import Implementation, SubjectError
from .suites import load

#: The constant in <sys/prctl.h>.
_PR_SET_PDEATHSIG = 1


def start() -> NoReturn:
    """Load the implementation, send its description, and answer questions until none can come.

    The process's arguments are the implementation, as :func:`.suites.load` takes it; the descriptor
    of the connection to the process that asks; and "forking" if cases run in a child, which is
    replaced when it crashes: that is quick, where loading PyTorch again takes seconds.
    """
    spec, descriptor, mode = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that asks will end this one
    _end_with_parent()
    os.set_inheritable(descriptor, False)  # programs that it starts must not hold the connection
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    judge: Connection = Connection(descriptor)
    try:
        subject = load(spec)
    except SubjectError as error:
        judge.send(error)
    else:
        names = ("name", "suite", "strict", "facts")
        judge.send({name: getattr(subject, name) for name in names})
        (_relay if mode == "forking" else _answer)(judge, subject)
    # Exit at once, without waiting for threads that the implementation left running.
    sys.stdout.flush()
    os._exit(0)


def _questions(asked: Connection) -> Iterator[Case]:
    """The cases to run, as they arrive, until the process that asks has ended."""
    with contextlib.suppress(EOFError, OSError):
        while True:
            yield asked.recv()


def _answer(judge: Connection, subject: Implementation, *others: Connection) -> None:
    """Answer each question with the case and its outcome; close the other connections first."""
    _end_with_parent()
    for each in others:
        each.close()
    for case in _questions(judge):
        judge.send(None)  # it is read: from here on a crash is this case's doing
        outcome = subject.run(case)
        sys.stdout.flush()
        judge.send((case, outcome))


def _relay(judge: Connection, subject: Implementation) -> None:
    """Have a child answer; if it ends on a case, its exit code stands in the outcome's place."""
    child: ForkProcess | None = None
    for case in _questions(judge):
        is_read, answer = False, None
        while answer is None:
            if child is None or not child.is_alive():
                ours, theirs = Pipe()
                child = ForkProcess(target=_answer, args=(theirs, subject, ours, judge))
                child.start()
                theirs.close()
            try:
                ours.send(case)
                is_read = receive(ours, child.is_alive) is None
                answer = receive(ours, child.is_alive)
            except (EOFError, OSError):
                child.join()
                if is_read:  # else it ended on its own, and the next child answers
                    answer = (case, child.exitcode)
        judge.send(answer)


def _end_with_parent() -> None:
    """Have the system kill this process when its parent ends; only Linux can."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
