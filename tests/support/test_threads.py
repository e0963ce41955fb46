"""Who says how many threads a call may use."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import normgrad as ng
from normgrad.backends.cpu import teams
from normgrad.support import threads
from normgrad.support.machine import this_machine

CORES = this_machine().cores

#: How many threads a call of some size really uses, after each of some statements, told by its
#: team.
USED = """
import sys
first, *others = sys.argv[1:]
import numpy as np, normgrad as ng
from normgrad.backends.cpu import teams
exec(first)
used = []
ready = teams.ready
def watched(for_workers):
    team = ready(for_workers)
    used.append(team.size)
    return team
teams.ready = watched
x = np.ones((16, 8, 64, 64), np.float32)
for statement in ("", *others):
    exec(statement)
    used.clear()
    ng.batch_norm_backward(x, x, training=True)
    print(ng.get_num_threads(), *used)
"""


def used(*statements: str, **environment: str) -> list[list[int]]:
    """After each statement: the number asked for, and the number used."""
    names = ("NORMGRAD_NUM_THREADS", "OMP_NUM_THREADS")
    kept = {name: value for name, value in os.environ.items() if name not in names}
    done = subprocess.run(
        [sys.executable, "-c", USED, *(statements or [""])], env={**kept, **environment},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return [[int(word) for word in line.split()] for line in done.stdout.splitlines()]


@pytest.fixture(autouse=True)
def _as_before():
    yield
    ng.set_num_threads(None)


def test_all_cores_unless_someone_says_otherwise():
    assert used() == [[CORES, CORES]]


def test_the_function_decides_first():
    assert used("ng.set_num_threads(3)", NORMGRAD_NUM_THREADS="2") == [[3, 3]]
    one, again = used("ng.set_num_threads(1)", "ng.set_num_threads(None)")
    assert one == [1, 1]
    assert again == [CORES, CORES]


def test_the_environment_decides_where_torch_is_not():
    assert used(NORMGRAD_NUM_THREADS="3") == [[3, 3]]
    assert used(NORMGRAD_NUM_THREADS="1") == [[1, 1]]


def test_never_more_than_there_is_room_for():
    assert used("ng.set_num_threads(1000)") == [[1000, teams.MOST]]


def test_torch_decides_where_it_is():
    pytest.importorskip("torch")
    statements = ("import torch; torch.set_num_threads(3)", "ng.set_num_threads(2)")
    assert used(*statements, NORMGRAD_NUM_THREADS="1") == [[3, 3], [2, 2]]


#: The digest of results, here and in a forked child, and whether PyTorch's threads made them.
SHARED = """
import hashlib, os, sys
if "torch" in sys.argv:
    import torch
    torch.set_num_threads(3)
    torch.ones(1 << 20).mul_(2)
import numpy as np, normgrad as ng
from normgrad.backends.cpu import teams
x = np.random.default_rng(0).standard_normal((16, 8, 64, 64), dtype=np.float32)
def digest():
    ng.set_num_threads(3)
    found = [*ng.batch_norm_backward(x, x[::-1], training=True), ng.batch_norm(x, training=True)[0]]
    return hashlib.sha256(b"".join(value.tobytes() for value in found)).hexdigest()
print(digest(), teams.of_torch() is not None, flush=True)
child = os.fork()
if child == 0:
    print(digest(), flush=True)
    os._exit(0)
print(os.waitpid(child, 0)[1])
"""


def test_pytorch_s_threads_do_the_same_and_are_left_alone_after_a_fork():
    torch = pytest.importorskip("torch")
    if not list((Path(torch.__file__).parent / "lib").glob("libgomp*")):
        pytest.skip("PyTorch without GNU's OpenMP")
    environment = {**os.environ}
    found = {}
    for who in ("alone", "torch"):
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", SHARED, who], env=environment,
            capture_output=True, text=True, check=True, timeout=300,
        )  # fmt: skip
        found[who] = done.stdout.splitlines()
    digest = found["alone"][0].split()[0]
    assert found["alone"] == [f"{digest} False", digest, "0"]
    assert found["torch"] == [f"{digest} True", digest, "0"]


def test_tasks_add_to_sums_of_their_own():
    """A row's last vector may reach beyond it, where the sums of the next task's rows are."""
    torch = pytest.importorskip("torch")
    for width in 3 * list(range(257, 512, 6)):
        dy = torch.randn(64, width, dtype=torch.float64)
        one = torch.ones(64, 1, dtype=torch.float64)
        found = []
        for count in (1, *20 * [2]):
            ng.set_num_threads(count)
            found.append(ng.layer_norm_backward(dy, dy, one, one, normalized_shape=(width,)))
        assert all(torch.equal(each.grad_bias, found[0].grad_bias) for each in found)


@pytest.mark.parametrize(
    ("count", "error", "message"),
    [
        (0, ValueError, "count: 0; allowed: a positive integer"),
        (-3, ValueError, "count: -3; allowed: a positive integer"),
        (2.0, TypeError, "count: 2.0; allowed: an integer"),
        (True, TypeError, "count: True; allowed: an integer"),
        ("2", TypeError, "count: '2'; allowed: an integer"),
    ],
)
def test_a_wrong_number_is_named(count, error, message):
    with pytest.raises(error) as caught:
        ng.set_num_threads(count)
    assert str(caught.value) == message


@pytest.mark.parametrize("setting", ["many", "0", "-1", "1.5", ""])
def test_a_wrong_environment_is_named(setting, monkeypatch):
    monkeypatch.setenv(threads.VARIABLE, setting)
    with pytest.raises(
        ValueError, match=r"^NORMGRAD_NUM_THREADS: .*; allowed: a positive integer$"
    ):
        threads._from_environment()


def test_numba_s_number_does_not_count():
    code = (
        "import sys, normgrad as ng; ng.set_num_threads(2); two = ng.get_num_threads();"
        "ng.set_num_threads(None); print(two, ng.get_num_threads())"
    )
    environment = {**os.environ, "NUMBA_NUM_THREADS": "1", "NORMGRAD_NUM_THREADS": "4"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout == "2 4\n"
