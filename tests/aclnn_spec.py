"""The operators' contracts as the documents state them, and calls that keep to them.

They are written from the documents, not from the tables under test, to compare the two.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from normgrad.dialects import aclnn

BN, REDUCE, ELEMT, GN = (
    f"aclnn{name}" for name in
    ("BatchNormBackward", "BatchNormReduceBackward", "BatchNormElemtBackward", "GroupNormBackward")
)  # fmt: skip
TRAINING, A2, A3, NEW = "Atlas training series", "Atlas A2", "Atlas A3", "Ascend 950"
STATS, GATHER, FORWARD_ELEMT, RMS = (
    f"aclnn{name}" for name in
    ("BatchNormStats", "BatchNormGatherStatsWithCounts", "BatchNormElemt", "RmsNorm")
)  # fmt: skip
OTHERS = ("Atlas inference series", "Atlas 200I/500 A2")
HAS = {BN: (TRAINING, A2, A3, NEW), REDUCE: (TRAINING, A2, A3), ELEMT: (A2, A3),
       GN: (TRAINING, A2, A3)}  # fmt: skip
#: The products of forward passes and statistics.
FORWARD_HAS = {STATS: (TRAINING, A2, A3, NEW), GATHER: (TRAINING, A2, A3),
               FORWARD_ELEMT: (TRAINING, A2, A3), RMS: (A2, A3, OTHERS[0])}  # fmt: skip
OK, NULL, INVALID, NO_KERNEL = 0, 161001, 161002, 561003

CODES = {
    "float32": 0, "float16": 1, "int8": 2, "int32": 3, "uint8": 4, "int16": 6, "uint16": 7,
    "uint32": 8, "int64": 9, "uint64": 10, "float64": 11, "bool": 12, "complex64": 16,
    "complex128": 17, "bfloat16": 27, "undefined": -1, "string": 13,
}  # fmt: skip
FORMATS = {
    "UNDEFINED": -1, "NCHW": 0, "NHWC": 1, "ND": 2, "NC1HWC0": 3, "FRACTAL_Z": 4,
    "NC1HWC0_C04": 12, "HWCN": 16, "NDHWC": 27, "FRACTAL_NZ": 29, "NCDHW": 30, "NDC1HWC0": 32,
    "NC": 35, "NCL": 47,
}  # fmt: skip
PRIVATE = ("UNDEFINED", "NC1HWC0", "FRACTAL_Z", "NC1HWC0_C04", "HWCN", "FRACTAL_NZ", "NDC1HWC0")
FLOATS = {
    **dict.fromkeys((TRAINING, OTHERS[0]), ("float32", "float16")),
    **dict.fromkeys((A2, A3, NEW), ("float32", "float16", "bfloat16")),
}


class T(NamedTuple):
    """A tensor of a test."""

    shape: tuple[int, ...]
    dtype: str = "float32"
    format: str = "ND"


def tensor(what: T) -> Any:
    """Create an aclTensor, over memory that is just large enough."""
    size = int(np.prod(what.shape, dtype=np.int64)) * 16
    data = np.zeros(max(size, 16), np.uint8)
    return aclnn.aclCreateTensor(
        what.shape, CODES[what.dtype], None, 0, FORMATS[what.format], None, data
    )


X, C = (2, 3, 4, 5), (3,)
ARGUMENTS: dict[str, dict[str, Any]] = {
    BN: {
        "gradOut": T(X), "input": T(X), "weight": T(C), "runningMean": T(C), "runningVar": T(C),
        "saveMean": T(C), "saveInvstd": T(C), "training": True, "eps": 1e-5,
        "outputMask": [True, True, True], "gradInput": T(X), "gradWeight": T(C), "gradBias": T(C),
    },
    REDUCE: {
        "gradOut": T(X), "input": T(X), "mean": T(C), "invstd": T(C), "weight": T(C),
        "inputG": True, "weightG": True, "biasG": True, "sumDy": T(C), "sumDyXmu": T(C),
        "gradWeight": T(C), "gradBias": T(C),
    },
    ELEMT: {
        "gradOut": T(X), "input": T(X), "mean": T(C), "invstd": T(C), "weight": T(C),
        "sumDy": T(C), "sumDyXmu": T(C), "counter": T((2,), "int32"), "gradInput": T(X),
    },
    GN: {
        "gradOut": T((2, 6, 4, 5)), "input": T((2, 6, 4, 5)), "mean": T((2, 3)),
        "rstd": T((2, 3)), "gamma": T((6,)), "N": 2, "C": 6, "HxW": 20, "group": 3,
        "outputMask": [True, True, True], "gradInput": T((2, 6, 4, 5)), "gradGammaOut": T((6,)),
        "gradBetaOut": T((6,)),
    },
    STATS: {"input": T(X), "eps": 1e-5, "mean": T(C), "invstd": T(C)},
    GATHER: {
        "input": T(X), "mean": T((2, 3)), "invstd": T((2, 3)), "runningMean": T(C),
        "runningVar": T(C), "momentum": 0.1, "eps": 1e-5, "counts": T((2,)), "meanAll": T(C),
        "invstdAll": T(C),
    },
    FORWARD_ELEMT: {
        "input": T(X), "weight": T(C), "bias": T(C), "mean": T(C), "invstd": T(C), "eps": 1e-5,
        "output": T(X),
    },
    RMS: {
        "x": T(X), "gamma": T((4, 5)), "epsilon": 1e-6, "yOut": T(X), "rstdOut": T((2, 3, 1, 1)),
    },
}  # fmt: skip


def arguments(operator: str, changes: dict[str, Any] | None = None) -> dict[str, Any]:
    """The arguments of a call that keeps to the contract, except for the changes."""
    return {**ARGUMENTS[operator], **(changes or {})}


def all_of(operator: str, dtype: str) -> dict[str, Any]:
    """Changes that give every tensor one dtype (the counter keeps its own)."""
    return {
        name: value._replace(dtype=dtype)
        for name, value in ARGUMENTS[operator].items()
        if isinstance(value, T) and name != "counter"
    }


def built(call: dict[str, Any]) -> dict[str, Any]:
    """The arguments, with tensors created from their descriptions."""
    return {name: tensor(value) if isinstance(value, T) else value for name, value in call.items()}


def phase_1(operator: str, call: dict[str, Any]) -> tuple[int, Any]:
    """Run phase 1; return the workspace's size and the executor."""
    return getattr(aclnn, f"{operator}GetWorkspaceSize")(*built(call).values())


def status_of(operator: str, product: str, changes: dict[str, Any]) -> tuple[int, str | None, str]:
    """Phase 1's status, the parameter that its error names, and the error's text."""
    try:
        with aclnn.product(product):
            phase_1(operator, arguments(operator, changes))
    except aclnn.AclnnError as error:
        return int(error.status), error.parameter, str(error)
    return OK, None, ""
