"""The process in which an implementation runs, as the one that judges sees it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from typing import Any

from . import wire
from .cases import Case
from .outcomes import Outcome
from .subjects import SubjectError

#: An answer that takes longer never comes: none takes a second, but kernels may have to be compiled
#: first, by a machine that has other things to do.
PATIENCE = 300.0
#: What is left of it when one has never come.
LITTLE_PATIENCE = 30.0

#: How long a process that has closed its pipes may take to end.
_LAST_BREATH = 10.0

#: So much of what a process that crashed has written is looked at for its last line; and so much it
#: may write before it is thrown away.
_TAIL, _MOST_WRITTEN = 1 << 12, 1 << 24

#: Not ``python -m``, which would import files of the current folder in the place of libraries.
_START = (
    "import sys; sys.path[:] = [folder for folder in sys.path if folder]; "
    "from normgrad.testing.worker import start; start()"
)


class CrashedError(Exception):
    """The process ended, or the child of it that computes; the text says how."""


class Process:
    """An implementation's process.

    Attributes:
        lives: whether it, or a child of it, can be asked.
    """

    lives = True

    def __init__(self, spec: str, quick: bool, forking: bool = False) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed in `end`
        self._written = self._pings = 0
        self._unread = bytearray()
        theirs_in, self._out = os.pipe()
        self._in, theirs_out = os.pipe()
        modes = ["quick" if quick else "all", "forking" if forking else "alone"]
        self._process = subprocess.Popen(
            [sys.executable, "-c", _START, spec, *modes, str(theirs_in), str(theirs_out)],
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
            header = self._receive(PATIENCE)
        except (EOFError, wire.SilenceError, ValueError) as error:
            reason = self._ending() if isinstance(error, EOFError) else "no answer"
            raise SubjectError(f"it cannot be loaded: {reason}") from None
        if "failed" in header:
            raise SubjectError(str(header["failed"]))
        return header

    def outcome(self, case: Case, patience: float) -> Outcome:
        """What comes of a case.

        Raises:
            CrashedError: the process has ended, or the child that computes.
            wire.SilenceError: it has not answered in so many seconds.
        """
        try:
            return self._outcome(case, patience)
        except EOFError:
            self.lives = False
            raise CrashedError(self._ending()) from None
        except wire.SilenceError:
            self.lives = False
            raise
        except (ValueError, KeyError, TypeError) as error:
            self.lives = False
            raise CrashedError(f"its answer cannot be read: {error}") from None

    def _outcome(self, case: Case, patience: float) -> Outcome:
        deadline = time.monotonic() + patience
        self._ask({"case": case.name})
        endings: list[str] = []
        while True:
            header = self._receive(deadline - time.monotonic())
            if "crashed" in header:
                # Whether that child had read the case only the next one knows: it has the case
                # still to answer, or comes to the ping at once.
                endings.append(self._ending(int(header["crashed"])))
                self._pings += 1
                self._ask({"ping": self._pings})
            elif "pong" in header:
                if endings and header["pong"] == self._pings:
                    raise CrashedError(endings[0])
            elif header["case"] != case.name:
                raise ValueError("it is to another question")
            else:
                self._note(int(header["written"]))
                return wire.outcome_of(header)

    def _note(self, written: int) -> None:
        """How much it has printed until its answer; what is too much is thrown away."""
        self._written = written
        handle = self._log.fileno()
        if self._written > _MOST_WRITTEN:
            os.ftruncate(handle, 0)
            os.lseek(handle, 0, os.SEEK_SET)  # its writes go on from here too
            self._written = 0

    def _ask(self, question: dict[str, Any]) -> None:
        with contextlib.suppress(BrokenPipeError):
            wire.send(self._out, question)

    def _receive(self, patience: float) -> dict[str, Any]:
        return wire.receive(self._in, self._unread, patience, lambda: self._process.poll() is None)

    def _ending(self, code: int | None = None) -> str:
        """How the process or its child ended, and the last that it wrote since its last answer."""
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
        """End the process, whatever it is doing."""
        for descriptor in (self._out, self._in):
            os.close(descriptor)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._log.close()
