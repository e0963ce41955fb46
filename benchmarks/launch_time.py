"""What a launch costs the processor that asks for it, without a GPU.

    python benchmarks/launch_time.py [--rounds N]

A library in place of CUDA's driver keeps what it is asked to launch, and does nothing more. Two
ways are timed by turns, in microseconds for a call of a program, the median of all rounds:

- run: by compiled code, as in a call whose signature is known;
- by Triton: the same launches made by Triton's launcher, with the Python in front of it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import fake_cuda
from triton_programs import arguments, program_of

from normgrad.backends.triton.runtime import Runner
from normgrad.bench import timing
from normgrad.problem import PLACES

#: Operators and shapes whose programs have few launches.
CASES = (
    ("batch_norm_backward", (8, 64, 14, 14)),
    ("batch_norm_backward", (256, 64, 56, 56)),
    ("group_norm_backward", (256, 64, 56, 56)),
)
ADDRESSES = [0x7F00_0000_0000 + 4096 * place for place in range(PLACES)]


def ways_of(program: Any) -> dict[str, Callable[[], None]]:
    """What is timed, by name."""
    runner = Runner(program, 0, [], [])
    fake_cuda.call(runner, ADDRESSES)
    (ready,) = runner._ready.values()
    return {
        "run": lambda: fake_cuda.call(runner, ADDRESSES),
        "by Triton": lambda: ready.start(ADDRESSES, fake_cuda.STREAM, 0),
    }


def main() -> None:
    """Print the times."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=41)
    rounds = parser.parse_args().rounds
    if rounds < 1:
        parser.error(f"--rounds: {rounds}; allowed: 1 or more")
    if fake_cuda.compiler() is None:
        parser.error("a C compiler: neither cc nor gcc is on PATH; allowed: one")
    fake_cuda.install(fake_cuda.build())
    print("launches  way            us a call  us a launch  program")
    for name, shape in CASES:
        program = program_of(name, **arguments(name, shape, "bfloat16"))
        count = len(program.launches)
        for way, seconds in timing.measure(ways_of(program), rounds=rounds).medians.items():
            us = 1e6 * seconds
            each = f"{us:9.2f}  {us / count:11.2f}"
            print(f"{count:8}  {way:<13}  {each}  {name}: {program.path}")


if __name__ == "__main__":
    main()
