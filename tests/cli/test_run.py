"""`normgrad run` on good files: what it computes, prints and writes."""

import inspect
import re

import ml_dtypes
import numpy as np
import pytest
from safetensors import safe_open

import normgrad
from normgrad.cli import app
from normgrad.operators.by_name import PLANNED

OUTPUTS = {
    "batch_norm_backward": ["grad_input", "grad_weight", "grad_bias"],
    "batch_norm_backward_reduce": ["sum_dy", "sum_dy_xmu", "grad_weight", "grad_bias"],
    "batch_norm_backward_elemt": ["grad_input"],
    "group_norm_backward": ["grad_input", "grad_weight", "grad_bias"],
}
OPERATORS = list(OUTPUTS)


def test_every_option_of_a_gradient_is_one_of_the_command():
    options = {name for each in PLANNED.values() if each.is_gradient for name in each.options}
    assert options <= inspect.signature(app._run).parameters.keys()


def load(path, kind=None):
    if (kind or path.suffix) == ".npz":
        with np.load(path, allow_pickle=False) as archive:
            return dict(archive)
    with safe_open(path, "np") as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


def rows(stdout):
    """The table: (shape, dtype, norm, units, verdict) by output."""
    found = re.findall(r"^ (\w+) +(\(.*?\)) +(\w+) +(\S+) +(\S+) +(pass|FAIL) *$", stdout, re.M)
    return {name: rest for name, *rest in found}


def called(problem, **choices):
    """What the public function gives, by output."""
    arguments = {"weight": None} if problem.operator == "batch_norm_backward_elemt" else {}
    function = getattr(normgrad, problem.operator)
    got = function(**{**arguments, **problem.tensors, **problem.choices, **choices})
    got = got if isinstance(got, tuple) else (got,)
    pairs = zip(OUTPUTS[problem.operator], got, strict=True)
    return {name: value for name, value in pairs if value is not None}


def assert_same(found, expected):
    assert sorted(found) == sorted(expected)
    for name, value in expected.items():
        assert found[name].dtype == value.dtype, name
        assert found[name].shape == value.shape, name
        assert found[name].tobytes() == value.tobytes(), name


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
@pytest.mark.parametrize("operator", OPERATORS)
def test_every_operator_goes_through_either_format(cli, problem, tmp_path, operator, suffix):
    case = problem(operator)
    file = case.save(tmp_path / f"layer{suffix}")
    out = tmp_path / f"gradients{suffix}"
    result = cli("run", file, "-o", out)
    assert result.exit_code == 0, result.stderr
    assert result.stderr == ""

    found = load(out)
    assert_same(found, called(case))
    for name, expected in zip(OUTPUTS[operator], case.textbook(), strict=True):
        np.testing.assert_allclose(found[name], expected, rtol=2e-5, atol=2e-5, err_msg=name)

    assert result.stdout.startswith(f"{operator}\n")
    table = rows(result.stdout)
    assert list(table) == OUTPUTS[operator]
    for name, (shape, dtype, norm, units, verdict) in table.items():
        assert shape == str(found[name].shape)
        assert dtype == "float32"
        assert float(norm) == pytest.approx(np.linalg.norm(found[name].astype(float)), rel=1e-5)
        assert 0 <= float(units) <= 1
        assert verdict == "pass"
    assert float(table[OUTPUTS[operator][0]][3]) > 0
    assert f"written    {out}\n" in result.stdout


def test_what_is_printed_below_the_table(cli, batch_norm, tmp_path):
    result = cli("run", batch_norm.save(tmp_path / "layer.npz"))
    assert re.search(
        r"^time       [\d.]+ (µs|ms|s) a call \(median of \d+, after a first one that compiles\)$",
        result.stdout,
        re.M,
    )
    # Three tensors of 360 float32.
    assert re.search(
        r"^bandwidth  \S+ GB/s \(effective: 4.32 kB of grad_out, input, grad_input\)$",
        result.stdout,
        re.M,
    )
    plan = normgrad.plan("batch_norm_backward", **batch_norm.tensors, training=True)
    assert f"\npath       {plan.path}\n" in result.stdout
    assert "written" not in result.stdout
    assert "\x1b" not in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 80
    assert [path.name for path in tmp_path.iterdir()] == ["layer.npz"]


def test_only_what_is_asked_for_counts_as_moved(cli, batch_norm, tmp_path):
    file = batch_norm.save(tmp_path / "layer.npz")
    result = cli("run", file, "--evaluation", "--output-mask", "1,0,0")
    assert "effective: 2.88 kB of grad_out, grad_input)" in result.stdout
    result = cli("run", file, "--output-mask", "0,0,0")
    assert result.exit_code == 0
    assert "bandwidth  0 GB/s (effective: 0 bytes of nothing)" in result.stdout
    assert rows(result.stdout) == {}


def test_bfloat16_in_safetensors(cli, problem, tmp_path):
    case = problem("group_norm_backward", ml_dtypes.bfloat16)
    case.tensors["weight"] = case.tensors["weight"].astype(ml_dtypes.bfloat16)
    out = tmp_path / "gradients.safetensors"
    result = cli("run", case.save(tmp_path / "layer.safetensors"), "-o", out)
    assert result.exit_code == 0, result.stderr
    found = load(out)
    assert_same(found, called(case))
    assert {value.dtype for value in found.values()} == {np.dtype(ml_dtypes.bfloat16)}
    for name, expected in zip(OUTPUTS[case.operator], case.textbook(), strict=True):
        np.testing.assert_allclose(
            found[name].astype(float), expected, rtol=2**-7, atol=2**-7, err_msg=name
        )
    table = rows(result.stdout)
    assert table["grad_input"][1] == "bfloat16"
    # One rounding to bfloat16 uses up much of its bound.
    assert 0.2 < float(table["grad_input"][3]) <= 1


@pytest.mark.parametrize("of", ["grad_out", "input"])
def test_float64_is_held_to_its_own_bound(cli, problem, tmp_path, monkeypatch, of):
    """As soon as one of the data tensors has it."""
    case = problem("batch_norm_backward", np.float64)
    for name in ("grad_out", "input"):
        if name != of:
            case.tensors[name] = case.tensors[name].astype(np.float32)
    dx, *parameters = case.textbook()
    single = [value.astype(np.float32).astype(np.float64) for value in parameters]
    file = case.save(tmp_path / "layer.npz")
    for gradients, status, verdict in [(parameters, 0, "pass"), (single, 1, "FAIL")]:
        results = (dx.astype(case.tensors["input"].dtype), *gradients)
        monkeypatch.setattr(normgrad, "batch_norm_backward", lambda *a, r=results, **k: r)
        result = cli("run", file, "-o", tmp_path / "out.npz")
        assert result.exit_code == status
        table = rows(result.stdout)
        assert table["grad_weight"][1] == "float64"
        assert table["grad_weight"][4] == verdict
        assert (float(table["grad_weight"][3]) > 1e5) == bool(status)
        assert_same(
            load(tmp_path / "out.npz"), dict(zip(OUTPUTS[case.operator], results, strict=True))
        )


def test_bfloat16_into_a_npz_is_refused_before_any_work(refused, problem, tmp_path, monkeypatch):
    case = problem("group_norm_backward", ml_dtypes.bfloat16)
    file = case.save(tmp_path / "layer.safetensors")
    monkeypatch.setattr(normgrad, "group_norm_backward", None)
    out = tmp_path / "gradients.npz"
    assert refused(file, out=out) == (
        f"{out}: grad_input is bfloat16, which a .npz cannot hold; allowed: a name that ends in "
        ".safetensors"
    )


@pytest.mark.parametrize(
    ("suffix", "name", "kind"),
    [
        (".npz", "gradients", ".npz"),
        (".npz", "gradients.dat", ".npz"),
        (".npz", "gradients.safetensors", ".safetensors"),
        (".npz", "GRADIENTS.SAFETENSORS", ".safetensors"),
        (".safetensors", "gradients", ".safetensors"),
        (".safetensors", "gradients.npz", ".npz"),
        (".npz", "layer.npz", ".npz"),
        (".safetensors", "layer.safetensors", ".safetensors"),
    ],
)
def test_out_is_written_under_exactly_its_name(cli, batch_norm, tmp_path, suffix, name, kind):
    file = batch_norm.save(tmp_path / f"layer{suffix}")
    assert cli("run", file, "-o", tmp_path / name).exit_code == 0
    assert {path.name for path in tmp_path.iterdir()} == {file.name, name}
    assert_same(load(tmp_path / name, kind), called(batch_norm))


def test_the_contents_decide_what_a_file_is(cli, batch_norm, tmp_path):
    file = batch_norm.save(tmp_path / "layer.npz").rename(tmp_path / "layer.safetensors")
    assert cli("run", file, "-o", tmp_path / "out").exit_code == 0
    assert_same(load(tmp_path / "out", ".npz"), called(batch_norm))


@pytest.mark.parametrize("name", ["out.npz", "out.safetensors"])
def test_column_major_arrays(cli, batch_norm, tmp_path, name):
    for tensor in ("grad_out", "input"):
        batch_norm.tensors[tensor] = np.asfortranarray(batch_norm.tensors[tensor])
    file = batch_norm.save(tmp_path / "layer.npz")
    assert cli("run", file, "-o", tmp_path / name).exit_code == 0
    np.testing.assert_array_equal(
        load(tmp_path / name)["grad_input"], called(batch_norm)["grad_input"]
    )


def test_compressed_archives(cli, batch_norm, tmp_path):
    tensors = {**batch_norm.tensors, "grad_out": np.zeros((16, 6, 128, 128), np.float32)}
    tensors["input"] = tensors["grad_out"]
    file = tmp_path / "zeros.npz"
    np.savez_compressed(file, operator=batch_norm.operator, training=True, **tensors)
    # As well as deflate can, which must not be taken for a bomb.
    assert file.stat().st_size < 2 * tensors["input"].nbytes / 900
    result = cli("run", file)
    assert result.exit_code == 0, result.stderr
    assert float(rows(result.stdout)["grad_input"][2]) == 0


# Where the arguments come from


def test_options_win_over_the_file(cli, problem, tmp_path):
    case = problem("batch_norm_backward")
    case.choices["eps"] = 100.0
    case.tensors["running_mean"] = np.full(6, 0.5, np.float32)
    case.tensors["running_var"] = np.full(6, 4, np.float32)
    out = tmp_path / "out.npz"
    file = case.save(tmp_path / "layer.npz")
    assert cli("run", file, "-o", out, "--evaluation", "--eps", "0.25").exit_code == 0
    found = load(out)
    assert_same(found, called(case, training=False, eps=0.25))
    # dx = weight / sqrt(4 + 0.25) · dy
    factor = case.tensors["weight"][:, None, None] / np.sqrt(4.25)
    np.testing.assert_allclose(found["grad_input"], case.tensors["grad_out"] * factor, rtol=1e-6)


def test_everything_by_options(cli, problem, tmp_path):
    case = problem("group_norm_backward")
    for name in ("grad_out", "input"):
        case.tensors[name] = np.ascontiguousarray(np.moveaxis(case.tensors[name], 1, -1))
    file, out = tmp_path / "tensors.npz", tmp_path / "out.npz"
    np.savez(file, **case.tensors)
    arguments = ("--operator", case.operator, "--num-groups", 3, "--channel-axis", -1)
    result = cli("run", file, "-o", out, *arguments, "--output-mask", "true,false,true")
    assert result.exit_code == 0, result.stderr
    found = load(out)
    assert sorted(found) == ["grad_bias", "grad_input"]
    assert_same(found, called(case, channel_axis=-1, output_mask=(True, False, True)))
    np.testing.assert_allclose(
        np.moveaxis(found["grad_input"], -1, 1),
        called(problem("group_norm_backward"))["grad_input"],
        rtol=1e-5,
        atol=1e-5,
    )


def test_which_sums(cli, problem, tmp_path):
    case = problem("batch_norm_backward_reduce")
    file, out = case.save(tmp_path / "layer.npz", weight_g=False), tmp_path / "out.npz"
    assert cli("run", file, "-o", out, "--no-input-g").exit_code == 0
    assert list(load(out)) == ["grad_bias"]
    assert cli("run", file, "-o", out, "--weight-g", "--no-bias-g").exit_code == 0
    assert sorted(load(out)) == ["grad_weight", "sum_dy", "sum_dy_xmu"]


@pytest.mark.parametrize(
    "mask", ["0,1,1", "false,true,true", "(False, True, True)", "[0, 1, 1]", " False,True,1 "]
)
@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_masks_in_words(cli, batch_norm, tmp_path, suffix, mask):
    batch_norm.choices["output_mask"] = mask
    out = tmp_path / "out.npz"
    assert cli("run", batch_norm.save(tmp_path / f"layer{suffix}"), "-o", out).exit_code == 0
    assert sorted(load(out)) == ["grad_bias", "grad_weight"]


@pytest.mark.parametrize("mask", [(False, True, True), np.array([0, 1, 1])])
def test_masks_in_arrays(cli, batch_norm, tmp_path, mask):
    batch_norm.choices["output_mask"] = mask
    out = tmp_path / "out.npz"
    assert cli("run", batch_norm.save(tmp_path / "layer.npz"), "-o", out).exit_code == 0
    assert sorted(load(out)) == ["grad_bias", "grad_weight"]


@pytest.mark.parametrize("training", [False, np.int64(0), "false", "False", "0", b"false"])
def test_flags_in_entries(cli, batch_norm, tmp_path, training):
    batch_norm.choices["training"] = training
    out = tmp_path / "out.npz"
    assert cli("run", batch_norm.save(tmp_path / "layer.npz"), "-o", out).exit_code == 0
    assert_same(load(out), called(batch_norm, training=False))


def test_numbers_in_tensors_of_a_safetensors_file(cli, problem, tmp_path):
    case = problem("group_norm_backward")
    del case.choices["num_groups"]
    case.tensors["num_groups"] = np.array(3)
    out = tmp_path / "out.npz"
    result = cli("run", case.save(tmp_path / "layer.safetensors"), "-o", out)
    assert result.exit_code == 0, result.stderr
    assert result.stderr == ""
    del case.tensors["num_groups"]
    assert_same(load(out), called(case, num_groups=3))


def test_entries_that_are_no_arguments_are_named_once(cli, batch_norm, tmp_path):
    file = batch_norm.save(tmp_path / "layer.npz", output=np.zeros(3), loss=1.0, num_groups=2)
    result = cli("run", file)
    assert result.exit_code == 0
    assert result.stderr == f"normgrad: note: {file}: not used: output, loss, num_groups\n"
    many = {f"other{index}": index for index in range(12)}
    file = batch_norm.save(tmp_path / "many.safetensors", format="np", **many)
    result = cli("run", file)
    line = re.fullmatch(
        rf"normgrad: note: {re.escape(str(file))}: not used: (other\d+(?:, other\d+)*) and 4 "
        r"more\n",
        result.stderr,
    )
    assert line is not None, result.stderr
    assert len(line[1].split(", ")) == 8


def test_arrays_that_are_no_arguments_are_not_opened(cli, batch_norm, tmp_path):
    file = batch_norm.save(tmp_path / "layer.npz", config=np.array({"lr": 1}, object))
    result = cli("run", file)
    assert result.exit_code == 0
    assert result.stderr == f"normgrad: note: {file}: not used: config\n"


# Over the bound


def test_a_wrong_gradient_is_found_out_and_written(cli, batch_norm, tmp_path, monkeypatch):
    file, out = batch_norm.save(tmp_path / "layer.npz"), tmp_path / "out.npz"
    right = called(batch_norm)
    wrong = right["grad_weight"] * np.float32(1.001)

    def broken(*args, **kwargs):
        return right["grad_input"], wrong, right["grad_bias"]

    monkeypatch.setattr(normgrad, "batch_norm_backward", broken)
    result = cli("run", file, "-o", out)
    assert result.exit_code == 1
    table = rows(result.stdout)
    assert {name: row[4] for name, row in table.items()} == {
        "grad_input": "pass",
        "grad_weight": "FAIL",
        "grad_bias": "pass",
    }
    assert float(table["grad_weight"][3]) > 1
    assert_same(load(out), {**right, "grad_weight": wrong})


def test_nan_is_over_any_bound(cli, batch_norm, tmp_path, monkeypatch):
    file = batch_norm.save(tmp_path / "layer.npz")
    right = called(batch_norm)
    right["grad_bias"][2] = np.nan

    def broken(*args, **kwargs):
        return tuple(right.values())

    monkeypatch.setattr(normgrad, "batch_norm_backward", broken)
    result = cli("run", file)
    assert result.exit_code == 1
    assert rows(result.stdout)["grad_bias"][2:] == ["nan", "inf", "FAIL"]


def test_warnings_become_notes(cli, batch_norm, tmp_path, monkeypatch):
    file = batch_norm.save(tmp_path / "layer.npz")
    original = normgrad.batch_norm_backward

    def warns(*args, **kwargs):
        import warnings

        warnings.warn("kernels cannot be kept", RuntimeWarning, stacklevel=1)
        return original(*args, **kwargs)

    monkeypatch.setattr(normgrad, "batch_norm_backward", warns)
    result = cli("run", file)
    assert result.exit_code == 0
    assert result.stderr == "normgrad: note: kernels cannot be kept\n"
