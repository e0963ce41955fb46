"""The command in a process of its own."""

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import normgrad

#: Runs the entry point with the arguments that follow it.
MAIN = "import sys; from normgrad.cli import main; sys.argv[0] = 'normgrad'; main()"


def normgrad_process(*arguments, code=None, **options):
    command = ["-c", code] if code else ["-m", "normgrad.cli"]
    return subprocess.run(
        [sys.executable, *command, *map(str, arguments)],
        check=False,
        capture_output=True,
        timeout=120,
        **{"encoding": "utf-8", "env": {**os.environ, "PYTHONUTF8": "1"}, **options},
    )


def test_from_a_file_to_a_file(batch_norm, tmp_path):
    file, out = batch_norm.save(tmp_path / "layer.npz"), tmp_path / "out.safetensors"
    result = normgrad_process("run", file, "-o", out, env={**os.environ, "COLUMNS": "30"})
    assert (result.returncode, result.stderr) == (0, "")
    lines = [line.rstrip() for line in result.stdout.splitlines()]
    assert lines[0] == "batch_norm_backward"
    assert " ".join(lines[2].split()) == "output shape dtype L2 norm max error / bound check"
    # Neither cut nor wrapped, however narrow the terminal that is not there.
    assert [line.split()[0] for line in lines[4:7]] == ["grad_input", "grad_weight", "grad_bias"]
    assert "(4, 6, 5, 3)" in lines[4]
    assert all(line.endswith("pass") for line in lines[4:7])
    assert lines[-1] == f"written    {out}"
    assert out.stat().st_size > 360 * 4


@pytest.mark.parametrize("module", ["normgrad", "normgrad.cli"])
def test_as_a_module(module):
    def run(*arguments):
        done = subprocess.run(
            [sys.executable, "-m", module, *arguments],
            check=False,
            capture_output=True,
            encoding="utf-8",
            timeout=120,
        )
        return done.returncode, done.stdout, done.stderr

    assert run("--version") == (0, f"normgrad {normgrad.__version__}\n", "")
    status, shown, complaint = run("run")
    assert (status, shown) == (2, "")
    assert complaint.startswith("Usage: normgrad run [OPTIONS] ")
    assert run("run", "nothing.npz")[2].startswith("normgrad: nothing.npz: No such file")


def test_a_refusal_is_one_line(tmp_path):
    out = tmp_path / "out.npz"
    out.write_bytes(b"before")
    result = normgrad_process("run", "nothing.npz", "-o", out)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == (
        "normgrad: nothing.npz: No such file or directory; allowed: a .npz or .safetensors file\n"
    )
    assert out.read_bytes() == b"before"


@pytest.mark.parametrize(
    ("absent", "named"),
    [(["typer"], "typer"), (["rich", "safetensors"], "rich and safetensors")],
)
def test_without_the_extra(absent, named):
    hide = f"import sys; sys.modules.update(dict.fromkeys({absent})); "
    result = normgrad_process("info", code=hide + MAIN)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == (
        f"normgrad: the command line needs {named}: pip install 'normgrad[cli]'\n"
    )


@pytest.mark.parametrize("command", ["run", "warmup", "verify", "bench"])
def test_without_a_compiler(batch_norm, tmp_path, command):
    """The error comes before any work."""
    file, out = batch_norm.save(tmp_path / "layer.npz"), tmp_path / "out.npz"
    arguments = {
        "run": (file, "-o", out),
        "verify": ("--quick",),
        "bench": ("--quick",),
    }
    if command == "bench":
        pytest.importorskip("torch")
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.modules['numba'] = None")
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]),
        "NUMBA_CPU_NAME": "generic",
        "NORMGRAD_BACKEND": "cpu",
    }
    result = normgrad_process(command, *arguments.get(command, ()), env=environment)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == (
        "normgrad: this processor (generic) has none of the levels that the package has kernels "
        "for, and Numba, which compiles kernels, is not installed; allowed: `pip install "
        "'normgrad[compile]'`\n"
    )
    assert not out.exists()


def test_nothing_slow_is_imported_to_begin_with():
    code = (
        "import sys, normgrad.cli.app; "
        "print(*{'numba', 'llvmlite', 'torch', 'matplotlib', 'scipy'} & set(sys.modules))"
    )
    result = normgrad_process(code=code)
    assert (result.returncode, result.stdout, result.stderr) == (0, "\n", "")


def test_info_imports_no_torch():
    code = (
        "import sys; from normgrad.cli import info; groups = dict(info.gather()); "
        "print(dict(groups['versions'])['normgrad'], 'torch' in sys.modules)"
    )
    result = normgrad_process(code=code)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout == f"{normgrad.__version__} False\n"


def test_a_reader_that_goes_away(batch_norm, tmp_path):
    file, out = batch_norm.save(tmp_path / "layer.npz"), tmp_path / "out.npz"
    reading, writing = os.pipe()
    os.close(reading)
    try:
        result = subprocess.run(
            [sys.executable, "-m", "normgrad.cli", "run", str(file), "-o", str(out)],
            check=False,
            stdout=writing,
            stderr=subprocess.PIPE,
            timeout=120,
        )
    finally:
        os.close(writing)
    assert (result.returncode, result.stderr) == (0, b"")
    with np.load(out) as archive:
        assert sorted(archive) == ["grad_bias", "grad_input", "grad_weight"]


def test_a_terminal_of_ascii(batch_norm, tmp_path):
    file = batch_norm.save(tmp_path / "läyer.npz", nöte=1)
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    result = normgrad_process(
        "run", file, "-o", tmp_path / "öut", encoding="ascii", env=environment
    )
    assert result.returncode == 0
    assert "not used: n\\xf6te\n" in result.stderr
    assert "|grad_input  |(4, 6, 5, 3) |float32 |" in result.stdout
    assert result.stdout.endswith("?ut\n")
    assert (tmp_path / "öut").is_file()


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_interrupted_while_the_command_is_parsed():
    """Typer by itself ends in silence."""
    code = f"""
import typer.core

def interrupted(*args, **kwargs):
    raise KeyboardInterrupt

typer.core.TyperGroup.parse_args = interrupted
{MAIN}
"""
    result = normgrad_process("info", code=code)
    assert (result.returncode, result.stdout) == (130, "")
    assert result.stderr == "normgrad: interrupted\n"


def test_interrupted_while_it_compiles(batch_norm, tmp_path):
    file = batch_norm.save(tmp_path / "layer.npz")
    folder = tmp_path / "kernels"
    folder.mkdir()
    # A cache without kernels, so that there is something to interrupt.
    process = subprocess.Popen(
        [sys.executable, "-m", "normgrad.cli", "run", str(file), "-o", str(tmp_path / "out.npz")],
        env={**os.environ, "NORMGRAD_CACHE_DIR": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # Whoever runs the tests in the background of a shell has them ignore interrupts.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    started = time.monotonic()
    while not any(folder.rglob("*.o")) and time.monotonic() - started < 60:
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=60)
    assert (process.returncode, stdout, stderr) == (130, b"", b"normgrad: interrupted\n")
    assert not (tmp_path / "out.npz").exists()


@pytest.mark.parametrize(
    ("variable", "allowed"),
    [("NORMGRAD_BACKEND", "cpu, triton"), ("NORMGRAD_NUM_THREADS", "a positive integer")],
)
def test_an_environment_variable_that_is_wrong(variable, allowed, batch_norm, tmp_path):
    complaint = f"{variable}: 'many'; allowed: {allowed}"
    environment = {**os.environ, variable: "many"}
    commands = [("verify", "--quick")]
    if variable == "NORMGRAD_BACKEND":  # so small a call asks for no threads
        commands.append(("run", batch_norm.save(tmp_path / "layer.npz")))
    for arguments in commands:
        result = normgrad_process(*arguments, env=environment)
        assert (result.returncode, result.stdout) == (2, "")
        assert result.stderr == f"normgrad: {complaint}\n"
    result = normgrad_process("info", env=environment)
    assert (result.returncode, result.stderr) == (0, "")
    assert f"not used: {complaint}" in result.stdout
