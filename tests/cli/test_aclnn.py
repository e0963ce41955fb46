"""normgrad aclnn contract: the table that is checked, for people."""

from __future__ import annotations

import pytest

from normgrad.dialects.aclnn.contracts import CONTRACTS


def row_of(text, name):
    """A row's cells."""
    line = next(line for line in text.splitlines() if line.split()[:1] == [name])
    return [cell.strip() for cell in line.split("  ") if cell.strip()]


def test_every_row_of_every_operator_is_printed(cli):
    result = cli("aclnn", "contract")
    assert (result.exit_code, result.stderr) == (0, "")
    for name, contract in CONTRACTS.items():
        assert f"{name} on " in result.stdout
        for row in contract.rows:
            assert row_of(result.stdout, row.name)


def test_one_operator_on_one_product(cli):
    result = cli("aclnn", "contract", "BatchNormBackward", "--product", "Ascend950PR")
    assert result.stdout.startswith(
        "aclnnBatchNormBackward on Ascend 950 (float32, float16, bfloat16)"
    )
    assert row_of(result.stdout, "gradOut") == [
        "gradOut", "required", "float32, float16, bfloat16",
        "ND, NC (2 axes), NCL (3 axes), NCHW (4 axes), NCDHW (5 axes), NHWC (4 axes), "
        "NDHWC (5 axes)", "2 to 8", "any",
    ]  # fmt: skip
    assert row_of(result.stdout, "saveInvstd")[2:] == [
        "as gradOut, or float32; as saveMean", "ND, NC, NCL, NCHW, NCDHW", "1",
        "(C,), or (0,) unless training",
    ]  # fmt: skip
    assert row_of(result.stdout, "gradWeight")[1] == "if outputMask[1], shape checked if given"
    assert "aclnnGroupNormBackward" not in result.stdout


def test_exceptions_of_products_stand_below_their_row(cli):
    lines = cli("aclnn", "contract", "aclnnbatchnormbackward").stdout.splitlines()
    weight = next(i for i, line in enumerate(lines) if line.split()[:1] == ["weight"])
    for line, product in zip(
        lines[weight + 1 :], ("Atlas A2", "Atlas A3", "Ascend 950"), strict=False
    ):
        assert line.startswith(f"   {product}  ")
        assert "as gradOut, or float32" in line


def test_no_name_is_broken_on_a_terminal_of_80_columns(cli, monkeypatch):
    unbroken = cli("aclnn", "contract").stdout
    monkeypatch.setenv("FORCE_COLOR", "1")  # Rich takes the output for a terminal's,
    monkeypatch.setenv("TERM", "dumb")  # which is 80 columns wide and has no colours
    text = cli("aclnn", "contract").stdout
    assert max(map(len, text.splitlines())) <= 80
    assert set(text.replace("─", "").split()) == set(unbroken.replace("─", "").split())


def test_a_product_without_the_operator(cli):
    result = cli("aclnn", "contract", "GroupNormBackward", "--product", "Ascend 950")
    assert result.stdout.strip() == (
        "aclnnGroupNormBackward: not on Ascend 950; on Atlas training series, Atlas A2, Atlas A3"
    )


def test_what_is_no_dtype_or_format_is_printed_too(cli):
    text = cli("aclnn", "contract").stdout
    assert text.count("C ≥ 1") == 4
    assert "at most 8000 channels each" in text
    assert row_of(cli("aclnn", "contract", "BatchNormGatherStatsWithCounts").stdout, "runningVar")[
        1
    ] == ("may be null, updated")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("NormBackward",), "OPERATOR: 'NormBackward'; allowed: aclnnBatchNormBackward, "),
        (("--product", "A9"), "--product: 'A9'; allowed: Atlas training series, Atlas A2, "),
    ],
)
def test_wrong_words(cli, words, message):
    result = cli("aclnn", "contract", *words)
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr
