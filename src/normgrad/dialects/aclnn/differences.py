"""Calls that succeed here, and that devices or public callers are known to treat otherwise.

The C libraries' report has a line for each; docs/capi/behaviour.md lists them with their
sources.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from . import products
from .products import BATCH_NORM, REDUCE, RMS_NORM


class Difference(NamedTuple):
    """What devices or public callers do otherwise.

    Attributes:
        topic: what it is about, in a few words.
        source: where that can be read.
        remarks: yields what a call's arguments have to do with it.
    """

    topic: str
    source: str
    remarks: Callable[[str, Mapping[str, Any]], Iterator[str]]


def _formats(operator: str, arguments: Mapping[str, Any]) -> Iterator[str]:
    names = {4: "NCHW", 5: "NCDHW"}
    for name in ("gradOut", "input", "gradInput") if operator == BATCH_NORM else ():
        tensor = arguments[name]
        rank = 0 if tensor is None else len(tensor.dims)
        if rank in names and tensor.format_name == "ND":
            yield f"{name}: format ND with {rank} axes; allowed: {names[rank]} on devices"


def _null_statistics(operator: str, arguments: Mapping[str, Any]) -> Iterator[str]:
    if operator == BATCH_NORM and arguments["training"]:
        for name in ("saveMean", "saveInvstd"):
            if arguments[name] is None:
                yield f"{name}: null in training; allowed: the forward pass's on devices"


def _null_weight(operator: str, arguments: Mapping[str, Any]) -> Iterator[str]:
    if operator == REDUCE and arguments["weight"] is None:
        yield "weight: null; allowed: a tensor on devices"


def _empty(operator: str, arguments: Mapping[str, Any]) -> Iterator[str]:
    data = arguments.get("input", arguments.get("x"))
    if data is None or 0 not in data.dims:
        return
    for name, tensor in arguments.items():
        is_gradient = name.startswith(("grad", "sum")) and name != "gradOut"
        if is_gradient and tensor is not None and 0 not in tensor.dims:
            yield f"{name}: of an empty input, zeros here; devices may leave it as it was"


def _halves(operator: str, arguments: Mapping[str, Any]) -> Iterator[str]:
    if operator == RMS_NORM:
        x, gamma = arguments["x"].dtype_name, arguments["gamma"].dtype_name
        if {x, gamma} == {"float16", "bfloat16"}:
            yield f"gamma: {gamma} with x {x}; allowed: x's dtype, or float32 on devices"


def _variances(operator: str, arguments: Mapping[str, Any]) -> Iterator[str]:
    """Compare the first channel's saveInvstd with that of the input."""
    if operator != BATCH_NORM or not arguments["training"]:
        return
    saved, data = arguments["saveInvstd"], arguments["input"]
    if saved is None or 0 in data.dims:
        return
    if not saved.memory.address:
        return
    axis = -1 if data.format_name in ("NHWC", "NDHWC") else 1
    with np.errstate(all="ignore"):  # the program's data may be anything
        values = np.asarray(np.take(data.array, 0, axis), np.float64)
        variance = float(np.var(values)) + float(arguments["eps"])
        value = float(np.asarray(saved.array[0], np.float64))
    if variance > 0 and abs(value / variance - 1) < 1e-2 < abs(value * variance**0.5 - 1):
        yield (
            "saveInvstd: 1/invstd², as some callers of older devices pass; allowed: invstd, or "
            f"{products.SAVE_INVSTD_VARIABLE}=variance on devices that read variances"
        )


DIFFERENCES = (
    Difference(
        "BatchNormBackward with format ND and 4 or 5 axes: the document pairs 4 with NCHW and 5 "
        "with NCDHW, and a device (910B) has returned 561103",
        "MindAct, bug report 2539",
        _formats,
    ),
    Difference(
        "BatchNormBackward in training without saveMean or saveInvstd: they are computed from "
        "input",
        "op-plugin, which always passes them",
        _null_statistics,
    ),
    Difference(
        "BatchNormBackward with 1/invstd² in saveInvstd, where the document has invstd",
        "MegEngine (dnn/src/atlas), PaddleCustomDevice (npu)",
        _variances,
    ),
    Difference(
        "BatchNormReduceBackward without a weight: it changes no output here",
        "op-plugin, which passes ones",
        _null_weight,
    ),
    Difference(
        "an empty input: gradients of parameters and sums are filled with zeros here",
        "the documents allow an empty tensor, but do not say what is written",
        _empty,
    ),
    Difference(
        "RmsNorm with x and gamma of different half types: each is read in its own type here",
        "the document's table of dtypes, whose columns belong together",
        _halves,
    ),
)


def remarks(operator: str, arguments: Mapping[str, Any], saved_variance: bool = False) -> list[str]:
    """What devices may do otherwise in a call that keeps the contract.

    ``saved_variance`` is as in :class:`.products.Device`.
    """
    differences = [
        each for each in DIFFERENCES if not (saved_variance and each.remarks is _variances)
    ]
    return [line for each in differences for line in each.remarks(operator, arguments)]
