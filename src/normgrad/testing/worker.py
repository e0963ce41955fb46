"""The process in which an implementation runs: it may crash, and nothing but a case is lost.

    python -m normgrad.testing.worker SPEC quick|all forking|alone READ WRITE

with the descriptors that messages are read from and written to.
"""

from __future__ import annotations

import os
import resource
import signal
import sys

from . import wire
from .subjects import SubjectError, load
from .suites import SUITES


def main(spec: str, quick: bool, forking: bool, read: int, write: int) -> None:
    """Load the implementation, say what it is, and answer until there is nothing more to read.

    Args:
        spec: as :func:`.subjects.load` takes it.
        quick: which suite cases are from.
        forking: whether cases run in a child, which is replaced when it crashes: that takes a
            moment, where loading PyTorch again takes seconds.
        read, write: descriptors.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who asks will end it
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        subject = load(spec)
    except SubjectError as error:
        wire.send(write, {"failed": str(error)}, {})
        return
    facts = subject.facts
    cases = {case.name: case for case in SUITES[subject.suite].cases(quick, facts)}
    wire.send(write, {"name": subject.name, "suite": subject.suite, "facts": facts}, {})
    while forking:
        child = os.fork()
        if child == 0:
            break
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code == 0:
            return
        wire.send(write, {"crashed": code}, {})
    while True:
        try:
            header, _ = wire.receive(read)
        except EOFError:
            return
        wire.send(write, *wire.outcome_message(subject.run(cases[header["case"]])))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2] == "quick", sys.argv[3] == "forking", *map(int, sys.argv[4:6]))
    # Whatever an implementation's threads still do is nobody's any more.
    sys.stdout.flush()
    os._exit(0)
