"""`normgrad run` on what it cannot use: one line, status 2, everything left as it was."""

import os
import struct
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

import normgrad
from normgrad.operators import by_name

EITHER = "allowed: a .npz or .safetensors file"
OPERATORS = ", ".join(by_name.OPERATORS)
FLOATS = "float32, float16, bfloat16, float64"
IN_NPZ = "float32, float16, float64 (and bfloat16 in a .safetensors)"
F = np.float32


# The file


def test_missing(refused, tmp_path):
    file = tmp_path / "nothing.npz"
    assert refused(file) == f"{file}: No such file or directory; {EITHER}"
    file = tmp_path / "no" / "folder.npz"
    assert refused(file) == f"{file}: No such file or directory; {EITHER}"


def test_directory(refused, tmp_path):
    file = tmp_path / "folder.npz"
    file.mkdir()
    assert refused(file) == f"{file}: a directory; {EITHER}"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes in the file system")
def test_pipe(refused, tmp_path):
    file = tmp_path / "pipe.npz"
    os.mkfifo(file)
    assert refused(file) == f"{file}: not a regular file; {EITHER}"


def test_unreadable(cli, batch_norm, tmp_path, monkeypatch):
    file = batch_norm.save(tmp_path / "layer.npz")

    opened = Path.open

    def denied(path, *args, **kwargs):
        if path == file:
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path, *args, **kwargs)

    monkeypatch.setattr(Path, "open", denied)  # whoever runs the tests may read everything
    result = cli("run", file)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == f"normgrad: {file}: Permission denied; {EITHER}\n"


@pytest.mark.parametrize("name", ["layer.npz", "layer.safetensors", "layer"])
def test_empty(refused, tmp_path, name):
    file = tmp_path / name
    file.touch()
    assert refused(file) == f"{file}: an empty file; {EITHER}"


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("layer.npz", "not a .npz file: it does not begin as a zip archive"),
        ("layer.safetensors", "not a .safetensors file: it has no header"),
        ("layer.txt", "neither a zip archive nor a safetensors header"),
        ("layer", "neither a zip archive nor a safetensors header"),
    ],
)
@pytest.mark.parametrize("content", [b"x", b"grad_out = [1, 2, 3]\n" * 9, bytes(100)])
def test_something_else(refused, tmp_path, name, what, content):
    file = tmp_path / name
    file.write_bytes(content)
    assert refused(file) == f"{file}: {what}; {EITHER}"


def test_single_array(refused, tmp_path):
    file = tmp_path / "input.npy"
    np.save(file, np.zeros(3))
    assert refused(file) == f"{file}: a .npy file, a single array without a name; {EITHER}"


@pytest.mark.parametrize("kept", [9, 100, 3000, -1, -30])
def test_truncated_npz(refused, batch_norm, tmp_path, kept):
    file = batch_norm.save(tmp_path / "layer.npz")
    file.write_bytes(file.read_bytes()[:kept])
    assert refused(file) == (
        f"{file}: the archive: damaged or truncated (File is not a zip file); allowed: an intact "
        ".npz file"
    )


@pytest.mark.parametrize("kept", [9, 100, -1])
def test_truncated_safetensors(refused, batch_norm, tmp_path, kept):
    file = batch_norm.save(tmp_path / "layer.safetensors")
    file.write_bytes(file.read_bytes()[:kept])
    line = refused(file)
    assert line.startswith(f"{file}: the header: damaged or truncated (")
    assert line.endswith("); allowed: an intact .safetensors file")


def test_corrupted_safetensors_header(refused, batch_norm, tmp_path):
    file = batch_norm.save(tmp_path / "layer.safetensors")
    content = file.read_bytes()
    for broken in [
        struct.pack("<Q", 1 << 40) + content[8:],
        content[:30] + b"\xff\xfe" + content[32:],
        content[:9] + b"!" + content[10:],
        content.replace(b'"F32"', b'"F64"', 1),
        content + b"1234",
    ]:
        file.write_bytes(broken)
        line = refused(file)
        assert line.startswith(f"{file}: the header: damaged or truncated ("), line
        assert line.endswith("); allowed: an intact .safetensors file")


# The operator


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_unknown_operator(refused, batch_norm, tmp_path, suffix):
    batch_norm.operator = "local_norm_backward"
    file = batch_norm.save(tmp_path / f"layer{suffix}")
    assert refused(file) == f"{file}: operator: 'local_norm_backward'; allowed: {OPERATORS}"
    assert refused(file, "--operator", "bn") == f"--operator: 'bn'; allowed: {OPERATORS}"


def test_no_operator(refused, tmp_path):
    file = tmp_path / "layer.npz"
    np.savez(file, input=np.zeros(3))
    assert refused(file) == (
        f"{file}: operator: not named; name it in an entry operator, or with --operator; allowed: "
        f"{OPERATORS}"
    )


@pytest.mark.parametrize(("operator", "shown"), [(3, "3"), (["a", "b"], "['a', 'b']")])
def test_operator_that_is_no_word(refused, tmp_path, operator, shown):
    file = tmp_path / "layer.npz"
    np.savez(file, operator=operator)
    assert refused(file) == f"{file}: operator: {shown}; allowed: {OPERATORS}"


# The tensors


def test_missing_tensors(refused, batch_norm, tmp_path):
    del batch_norm.tensors["grad_out"]
    file = batch_norm.save(tmp_path / "layer.npz")
    assert refused(file) == (
        f"{file}: no grad_out; batch_norm_backward needs grad_out, input, and takes weight, "
        "running_mean, running_var, save_mean, save_invstd"
    )
    assert refused(file, "--operator", "batch_norm_backward_elemt").startswith(
        f"{file}: no grad_out, no mean, no invstd, no sum_dy, no sum_dy_xmu, no count; "
    )


@pytest.mark.parametrize(
    ("suffix", "dtype", "shown", "allowed"),
    [
        (".npz", np.int32, "int32", IN_NPZ),
        (".npz", np.complex64, "complex64", IN_NPZ),
        (".npz", ">f4", ">f4", IN_NPZ),
        (".npz", "S4", "|S4", IN_NPZ),
        (".npz", [("a", "f4")], "record", IN_NPZ),
        (".npz", ml_dtypes.bfloat16, "|V2", IN_NPZ),
        (".safetensors", np.int32, "I32", FLOATS),
        (".safetensors", np.bool_, "BOOL", FLOATS),
        (".safetensors", np.uint8, "U8", FLOATS),
    ],
)
@pytest.mark.filterwarnings("ignore:Casting complex values")
def test_wrong_dtypes(refused, batch_norm, tmp_path, suffix, dtype, shown, allowed):
    batch_norm.tensors["weight"] = np.ones(6).astype(dtype)
    file = batch_norm.save(tmp_path / f"layer{suffix}")
    assert refused(file) == f"{file}: weight: dtype {shown}; allowed: {allowed}"


@pytest.mark.parametrize("dtype", [np.float64, np.uint8])
def test_wrong_dtype_of_count(refused, problem, tmp_path, dtype):
    case = problem("batch_norm_backward_elemt")
    case.tensors["count"] = case.tensors["count"].astype(dtype)
    file = case.save(tmp_path / "layer.npz")
    assert refused(file) == (
        f"{file}: count: dtype {np.dtype(dtype)}; allowed: int32, int64, float16, float32"
    )


@pytest.mark.parametrize(
    ("name", "value", "what"),
    [
        ("weight", np.ones(5, F), "shape (5,); allowed: (6,), the channels of input"),
        ("grad_out", np.ones((4, 6), F), "shape (4, 6); allowed: (4, 6, 5, 3), the shape of input"),
        ("input", np.array(1, F), "0 axes, shape (); allowed: 2 to 8"),
    ],
)
@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_wrong_shapes(refused, batch_norm, tmp_path, suffix, name, value, what):
    batch_norm.tensors[name] = value
    file = batch_norm.save(tmp_path / f"layer{suffix}")
    assert refused(file) == f"{file}: {name}: {what}"


def test_python_objects(refused, batch_norm, tmp_path):
    batch_norm.tensors["weight"] = None
    file = batch_norm.save(tmp_path / "layer.npz")
    what = (
        "an array of Python objects, which are never unpickled; allowed: numbers, booleans and "
        "words, and no entry at all for None"
    )
    assert refused(file) == f"{file}: weight: {what}"
    batch_norm.choices["training"] = None
    file = batch_norm.save(tmp_path / "layer.npz")
    assert refused(file) == f"{file}: training: {what}"


class Pickled:
    def __reduce__(self):
        return (Path.touch, (self.path,))


def test_nothing_is_unpickled(refused, batch_norm, tmp_path):
    trap = Pickled()
    trap.path = tmp_path / "touched"
    batch_norm.tensors["weight"] = np.array([trap], object)
    assert "never unpickled" in refused(batch_norm.save(tmp_path / "layer.npz"))
    assert not trap.path.exists()


# The other arguments


def test_missing_arguments(refused, problem, tmp_path):
    case = problem("batch_norm_backward")
    del case.choices["training"]
    file = case.save(tmp_path / "layer.npz")
    assert refused(file) == (
        f"{file}: training: missing; batch_norm_backward needs it, in an entry training or with "
        "--training or --evaluation"
    )
    case = problem("group_norm_backward")
    del case.choices["num_groups"]
    file = case.save(tmp_path / "layer.safetensors")
    assert refused(file) == (
        f"{file}: num_groups: missing; group_norm_backward needs it, in an entry num_groups or "
        "with --num-groups"
    )


@pytest.mark.parametrize(
    ("name", "value", "shown", "allowed"),
    [
        ("training", "maybe", "'maybe'", "true or false"),
        ("training", 2, "2", "true or false"),
        ("training", 1.0, "1.0", "true or false"),
        ("eps", "tiny", "'tiny'", "a number, 0 or more"),
        ("eps", True, "True", "a number, 0 or more"),
        ("eps", -1.0, "-1.0", "a number, 0 or more"),
        ("eps", float("nan"), "nan", "a number, 0 or more"),
        ("eps", [1e-5, 1e-5], "[1e-05, 1e-05]", "a number, 0 or more"),
        ("channel_axis", 1.0, "1.0", "an integer"),
        ("channel_axis", "last", "'last'", "an integer"),
        ("channel_axis", True, "True", "an integer"),
        ("output_mask", "1,1,2", "'1,1,2'", "true or false for each output, such as 1,1,0"),
        ("output_mask", [1.0, 0.5], "[1.0, 0.5]", "true or false for each output, such as 1,1,0"),
        ("output_mask", True, "True", "true or false for each output, such as 1,1,0"),
    ],
)
def test_wrong_words(refused, batch_norm, tmp_path, name, value, shown, allowed):
    batch_norm.choices[name] = value
    file = batch_norm.save(tmp_path / "layer.npz")
    assert refused(file) == f"{file}: {name}: {shown}; allowed: {allowed}"


@pytest.mark.parametrize(
    ("name", "value", "what"),
    [
        ("output_mask", "1,1", "2 entries; allowed: 3, for grad_input, grad_weight, grad_bias"),
        ("channel_axis", 4, "4; allowed: -4 to 3 for 4 axes"),
    ],
)
def test_arguments_that_the_operator_refuses(refused, batch_norm, tmp_path, name, value, what):
    batch_norm.choices[name] = value
    file = batch_norm.save(tmp_path / "layer.npz")
    assert refused(file) == f"{file}: {name}: {what}"


def test_an_array_in_the_place_of_a_number(refused, batch_norm, tmp_path):
    allowed = "allowed: a 0-d entry with a number, a boolean or a word"
    for value, shown in [
        (np.zeros((1, 1)), "shape (1, 1) and dtype float64"),
        (np.zeros(513), "shape (513,) and dtype float64"),
        (np.array(1j), "shape () and dtype complex128"),
        (np.array("x" * 1025), "shape () and dtype <U1025"),
    ]:
        batch_norm.choices["eps"] = value
        file = batch_norm.save(tmp_path / "layer.npz")
        assert refused(file) == f"{file}: eps: an array of {shown}; {allowed}"
    del batch_norm.choices["eps"]
    save_file(
        {**batch_norm.tensors, "eps": np.array(1, ml_dtypes.bfloat16)},
        tmp_path / "layer.safetensors",
        metadata={"operator": "batch_norm_backward", "training": "1"},
    )
    file = tmp_path / "layer.safetensors"
    assert refused(file) == f"{file}: eps: an array of shape () and dtype BF16; {allowed}"


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (
            ("--num-groups", "2"),
            "--num-groups: no argument of batch_norm_backward; allowed: --training or "
            "--evaluation, --eps, --output-mask, --channel-axis",
        ),
        (
            ("--output-mask", "yes"),
            "--output-mask: 'yes'; allowed: true or false for each output, such as 1,1,0",
        ),
        (
            ("--eps", "-1"),
            "--eps: -1.0; allowed: a number, 0 or more",
        ),
        (
            ("--operator", "batch_norm_backward_elemt", "--training"),
            "--training or --evaluation: no argument of batch_norm_backward_elemt; allowed: "
            "--channel-axis",
        ),
    ],
)
def test_wrong_options(refused, batch_norm, tmp_path, arguments, line):
    assert refused(batch_norm.save(tmp_path / "layer.npz"), *arguments) == line


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_long_names_and_words_are_shortened(cli, refused, batch_norm, tmp_path, suffix):
    """A file's text has no bounds, and a line on standard error has."""
    long = "beginning" + "x" * 50_000 + "ending"
    file = batch_norm.save(tmp_path / f"layer{suffix}", **{long: np.zeros(1, F)})
    result = cli("run", file)
    assert result.exit_code == 0
    (note,) = result.stderr.splitlines()
    assert note.startswith(f"normgrad: note: {file}: not used: beginningxxx")
    assert note.endswith("xxxending")
    assert len(note) < 400 + len(str(file))
    for option in ("--operator", "--output-mask", "-o", "--normalized-shape"):
        result = cli("run", file, option, long)
        assert result.exit_code == 2
        assert len(result.stderr) < 5100
    batch_norm.choices["training"] = "x" * (1000 if suffix == ".npz" else 50_000)
    assert len(refused(batch_norm.save(file))) < 400 + len(str(file))


def test_interrupt(cli, batch_norm, tmp_path, monkeypatch):
    file, out = batch_norm.save(tmp_path / "layer.npz"), tmp_path / "out.npz"
    out.write_bytes(b"before")

    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr("normgrad.batch_norm_backward", interrupted)
    monkeypatch.setattr(os, "_exit", sys.exit)
    result = cli("run", file, "-o", out)
    assert (result.exit_code, result.stdout) == (130, "")
    assert result.stderr == "normgrad: interrupted\n"
    assert out.read_bytes() == b"before"


def test_an_interrupt_that_python_drops(cli, batch_norm, tmp_path, monkeypatch):
    """As in what LLVM calls back while it compiles."""
    file, out = batch_norm.save(tmp_path / "layer.npz"), tmp_path / "out.npz"
    compute = normgrad.batch_norm_backward
    calls = []

    class Dropping:
        def __del__(self):
            calls.append(self)
            raise KeyboardInterrupt

    def interrupted(*args, **kwargs):
        Dropping()
        return compute(*args, **kwargs)

    monkeypatch.setattr(normgrad, "batch_norm_backward", interrupted)
    monkeypatch.setattr(os, "_exit", sys.exit)
    result = cli("run", file, "-o", out)
    assert len(calls) == 1
    assert (result.exit_code, result.stdout) == (130, "")
    assert result.stderr == "normgrad: interrupted\n"
    assert not out.exists()


def test_no_memory(refused, batch_norm, tmp_path, monkeypatch):
    def large(*args, **kwargs):
        raise MemoryError("Unable to allocate 9 TiB")

    monkeypatch.setattr("normgrad.batch_norm_backward", large)
    file = batch_norm.save(tmp_path / "layer.npz")
    assert refused(file) == "not enough memory (Unable to allocate 9 TiB)"
