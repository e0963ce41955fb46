"""Start several ranks, over gloo on loopback, which run functions of rank_programs together."""

from __future__ import annotations

import contextlib
import datetime
import multiprocessing
import os
import tempfile
import traceback
from pathlib import Path
from typing import Any

#: Seconds: long enough for the slowest start, short enough to notice a hang.
TIMEOUT = 60.0

#: What ranks' processes have imported when they start; checkpoints and wrappers need the others.
PRELOADED = ["torch", "torch.utils.checkpoint", "torch._dynamo"]


def work(rank: int, size: int, store: str, pipe: Any, timeout: float) -> None:
    """A rank's process: join the group, then run functions from the pipe until it closes."""
    os.environ["OMP_NUM_THREADS"] = "1"
    import rank_programs
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=size,
        timeout=datetime.timedelta(seconds=timeout),
    )  # fmt: skip
    with contextlib.suppress(EOFError):
        while True:
            name, arguments = pipe.recv()
            try:
                answer = True, getattr(rank_programs, name)(**arguments)
            except Exception as error:
                answer = False, (type(error).__name__, str(error), traceback.format_exc())
            pipe.send(answer)
    dist.destroy_process_group()


class Ranks:
    """A process group of this many ranks, each in its own process."""

    def __init__(self, size: int, timeout: float = TIMEOUT) -> None:
        # Forked from a process that has only imported PyTorch, which takes each some seconds.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOADED)
        self.size = size
        self._folder = tempfile.TemporaryDirectory()
        store = str(Path(self._folder.name) / "store")
        self.processes, self._pipes = [], []
        for rank in range(size):
            here, there = context.Pipe()
            process = context.Process(
                target=work, args=(rank, size, store, there, timeout), daemon=True
            )
            process.start()
            there.close()
            self.processes.append(process)
            self._pipes.append(here)

    def start(self, name: str, each: list[dict[str, Any]] | None = None, **common: Any) -> None:
        """Have every rank call a function, with arguments for each rank and common ones."""
        for pipe, own in zip(self._pipes, each or [{}] * self.size, strict=True):
            pipe.send((name, {**common, **own}))

    def answer(self, rank: int, within: float = 3 * TIMEOUT) -> tuple[bool, Any]:
        """Whether a rank succeeded, and its result, or its error's type, text and traceback."""
        assert self._pipes[rank].poll(within), f"rank {rank} hangs"
        return self._pipes[rank].recv()  # type: ignore[no-any-return]

    def run(self, name: str, each: list[dict[str, Any]] | None = None, **common: Any) -> list[Any]:
        """Run a function on all ranks, and return each rank's result."""
        self.start(name, each, **common)
        answers = [self.answer(rank) for rank in range(self.size)]
        for done, result in answers:
            assert done, result[2]
        return [result for _, result in answers]

    def errors(self, name: str, each: Any = None, **common: Any) -> list[tuple[str, str]]:
        """Run a function that must fail on every rank; return the errors' types and texts."""
        self.start(name, each, **common)
        answers = [self.answer(rank) for rank in range(self.size)]
        assert not any(done for done, _ in answers), answers
        return [(kind, text) for _, (kind, text, _) in answers]

    def close(self) -> None:
        """End the ranks' processes."""
        for pipe in self._pipes:
            pipe.close()
        for process in self.processes:
            process.join(20)
            if process.is_alive():
                process.kill()
                process.join()
        self._folder.cleanup()
