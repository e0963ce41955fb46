"""benchmarks/gpu_check.sh: what it runs, and what it says where something is missing."""

import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "gpu_check.sh"

#: A Python that has every package and a device, and whose commands are written down.
PYTHON = """#!/bin/sh
case "$*" in
    *find_spec*) for name in $LACKS; do case "$*" in *"'$name'"*) exit 1;; esac; done; exit 0;;
    *measuring.device*) echo "$REASON"; exit 0;;
esac
echo "python $*" >> "$LOG"
case "$*" in *"$FAILS"*) exit 3;; esac
"""
SANITIZER = """#!/bin/sh
echo "sanitizer $1 $2" >> "$LOG"
"""


@pytest.fixture
def check(tmp_path):
    """A checkout with the script alone, and tools that do nothing."""
    checkout, tools = tmp_path / "checkout", tmp_path / "tools"
    for folder in (checkout / "benchmarks", checkout / "tests" / "gpu", tools):
        folder.mkdir(parents=True)
    (checkout / "benchmarks" / "gpu_check.sh").write_bytes(SCRIPT.read_bytes())
    for name, content in (("python", PYTHON), ("compute-sanitizer", SANITIZER)):
        (tools / name).write_text(content)
        (tools / name).chmod(0o755)

    # Nothing else of this machine's: it may have the real ones.
    for name in ("bash", "dirname", "mkdir", "tee", "timeout"):
        (tools / name).symlink_to(shutil.which(name))

    def run(*arguments, tools=tools, **variables):
        log = tmp_path / "log"
        log.write_text("")
        told = {"LOG": str(log), "LACKS": "", "REASON": "", "FAILS": "never", **variables}
        done = subprocess.run(
            [tools / "bash", checkout / "benchmarks" / "gpu_check.sh", *arguments],
            env={"PATH": str(tools), **told},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        return done, log.read_text().splitlines()

    run.checkout, run.tools = checkout, tools
    return run


def test_everything_in_order(check, tmp_path):
    done, log = check("out", "--quick")
    assert done.returncode == 0, done.stdout + done.stderr
    assert log == [
        "python -m pytest -q -n 14 --dist worksteal tests/gpu",
        *log[1:4],
        "python benchmarks/gpu_peers.py",
        f"python benchmarks/measure.py run --device cuda --out {tmp_path}/out --quick",
    ]
    # The sanitizers run at once.
    assert {*log[1:4]} == {f"sanitizer --tool {tool}check" for tool in ("mem", "race", "init")}
    assert "left out   sanitizers on float16 and float64" in done.stdout
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names >= {f"{each}.log" for each in ("tests", "memcheck", "initcheck", "peers", "bench")}


def test_what_is_left_out_is_said(check):
    done, log = check("out", LACKS="xdist liger_kernel")
    assert done.returncode == 0
    assert "left out   tests in parallel" in done.stdout
    assert "left out   Liger's kernels" in done.stdout
    assert "left out   torch.compile, and the benchmark's other cases" in done.stdout
    assert log[0] == "python -m pytest -q tests/gpu"
    assert " --no-compile --repeat 9 --filter ^(train" in log[-1]


def test_kernels_compiled_before(check):
    """Which are used if there are any; if they cannot be, everything is compiled."""
    said = "left out   kernels compiled before"
    assert said in check("out")[0].stdout
    (check.checkout / "build").mkdir()
    (check.checkout / "build" / "gpu-cache.tar.xz").touch()
    for fails in ("never", "unpack"):
        done, log = check("out", FAILS=fails)
        assert (done.returncode, log[0]) == (0, "python benchmarks/gpu_cache.py unpack")
        assert (said in done.stdout) == (fails == "unpack")
        assert len(log) == 7


def test_a_step_that_does_not_end(check):
    (check.tools / "timeout").unlink()
    (check.tools / "timeout").write_text("#!/bin/sh\nexit 124\n")
    (check.tools / "timeout").chmod(0o755)
    done, log = check("out")
    assert (done.returncode, log) == (1, [])
    assert "FAILED     tests: it ran past its limit: " in done.stdout


def test_a_failure_does_not_stop_the_rest(check):
    done, log = check("out", FAILS="pytest -q -n")
    assert done.returncode == 1
    assert "FAILED     tests: " in done.stdout
    assert len(log) == 6


@pytest.mark.parametrize(
    ("variables", "line", "ran"),
    [
        ({"REASON": "PyTorch 9 finds no CUDA device"}, "a CUDA device: PyTorch 9 finds no CUDA", 0),
        ({"LACKS": "triton"}, "the package triton: nothing was run", 0),
        ({"LACKS": "pytest"}, "the package pytest: no tests were run", 2),
        ({"LACKS": "rich"}, "the package rich: no benchmark was run", 5),
        ({"LACKS": "matplotlib"}, "the package matplotlib: no benchmark was run", 5),
        ({"PYTHON": "no-such-python"}, "no-such-python: nothing was run", 0),
    ],
)
def test_what_is_missing(check, variables, line, ran):
    done, log = check("out", **variables)
    assert done.returncode == 2
    assert f"missing    {line}" in done.stdout
    assert len(log) == ran


def test_no_sanitizer_and_no_tests(check):
    (check.tools / "compute-sanitizer").unlink()
    done, log = check("out")
    assert (done.returncode, len(log)) == (2, 3)
    assert "missing    compute-sanitizer, of the CUDA toolkit: no memcheck" in done.stdout
    (check.checkout / "tests" / "gpu").rmdir()
    done, log = check("out")
    assert (done.returncode, len(log)) == (2, 2)
    assert "missing    the folder tests/gpu: no tests were run" in done.stdout


@pytest.mark.parametrize("arguments", [(), ("--quick",)])
def test_without_a_folder(check, arguments):
    done, log = check(*arguments)
    assert (done.returncode, done.stdout, log) == (2, "", [])
    assert done.stderr.startswith("gpu_check: FOLDER: missing; allowed: ")
