"""The products: device families of Huawei whose contracts normgrad can apply."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache

from ...support.values import represent
from ..rules import Product

BATCH_NORM = "aclnnBatchNormBackward"
REDUCE = "aclnnBatchNormReduceBackward"
ELEMT = "aclnnBatchNormElemtBackward"
GROUP_NORM = "aclnnGroupNormBackward"
STATS = "aclnnBatchNormStats"
GATHER = "aclnnBatchNormGatherStatsWithCounts"
FORWARD_ELEMT = "aclnnBatchNormElemt"
RMS_NORM = "aclnnRmsNorm"

#: The environment variables that are read if the program has set nothing.
PRODUCT_VARIABLE = "NORMGRAD_ACL_PRODUCT"
SAVE_INVSTD_VARIABLE = "NORMGRAD_ACL_SAVE_INVSTD"

_WITHOUT_BFLOAT16 = ("float32", "float16")
_WITH_BFLOAT16 = ("float32", "float16", "bfloat16")

TRAINING_SERIES = "Atlas training series"
A2 = "Atlas A2"
A3 = "Atlas A3"
ASCEND_950 = "Ascend 950"
INFERENCE_SERIES = "Atlas inference series"
A200I = "Atlas 200I/500 A2"

_OF_TRAINING = frozenset({BATCH_NORM, REDUCE, GROUP_NORM, STATS, GATHER, FORWARD_ELEMT})
_OF_A2 = _OF_TRAINING | {ELEMT, RMS_NORM}

PRODUCTS = (
    Product(TRAINING_SERIES, _WITHOUT_BFLOAT16, _OF_TRAINING),
    Product(A2, _WITH_BFLOAT16, _OF_A2),
    Product(A3, _WITH_BFLOAT16, _OF_A2),
    Product(ASCEND_950, _WITH_BFLOAT16, frozenset({BATCH_NORM, STATS})),
    Product(INFERENCE_SERIES, _WITHOUT_BFLOAT16, frozenset({RMS_NORM})),
    Product(A200I, (), frozenset()),
)

#: Patterns of chips' names, as aclrtGetSocName returns them, and of machines; the first match wins.
_CHIPS = (
    (r"(ascend ?)?910_93.*", A3),
    (r"(ascend ?)?910_95.*", ASCEND_950),
    (r"(ascend ?)?910b[1-4]?(-.*)?|ascend ?910b.*|(atlas )?800i a2|(atlas )?a200i a2 box", A2),
    (r"(ascend ?)?910(a|pro[ab]?|premiuma)?", TRAINING_SERIES),
    (r"(ascend ?)?950(pr|dt)?.*", ASCEND_950),
    (r"(ascend ?)?310p.*", INFERENCE_SERIES),
    (r"(ascend ?)?310b.*", A200I),
)


def find(name: str) -> Product:
    """The product with this name, or of the chip or machine with this name.

    Raises:
        ValueError: an unknown name.
    """
    folded = " ".join(str(name).split()).casefold()
    for pattern, chip_product in _CHIPS:
        if re.fullmatch(pattern, folded):
            folded = chip_product.casefold()
            break
    for product in PRODUCTS:
        if folded in (product.name.casefold(), product.name.casefold().replace(" ", "")):
            return product
    known = ", ".join(product.name for product in PRODUCTS)
    raise ValueError(
        f"product: {represent(name)}; allowed: {known}, or a chip's name such as Ascend910B3, "
        "Ascend910_9391, Ascend950PR, Ascend310P3"
    )


@dataclass(frozen=True)
class Device:
    """A product, and whether its operators read variances from the tensor saveInvstd."""

    product: Product
    saved_variance: bool = False


_set: Device | None = None
_within: ContextVar[Device | None] = ContextVar("normgrad.dialects.aclnn.device", default=None)


def current(otherwise: Device | None = None) -> Device:
    """The device that applies to this call.

    It is that of the innermost :func:`product` context, else that of :func:`set_product`, else
    ``otherwise``, else that of the environment variables, else Atlas A2.
    """
    return _within.get() or _set or otherwise or of_environment()


def of_environment() -> Device:
    """The device that the environment variables set, or Atlas A2.

    Raises:
        ValueError: an unknown name.
    """
    return device(*_environment())


def _environment() -> tuple[str, str]:
    """The values of the environment variables for the product and saveInvstd, or the defaults."""
    return os.environ.get(PRODUCT_VARIABLE, A2), os.environ.get(SAVE_INVSTD_VARIABLE, "invstd")


def _device(name: str | None, save_invstd: str | None) -> Device:
    """The device with these settings; the environment decides settings that are None."""
    usual_name, usual_invstd = _environment()
    product = find(usual_name if name is None else name)
    value = usual_invstd if save_invstd is None else save_invstd
    if value not in ("invstd", "variance"):
        raise ValueError(f"save_invstd: {represent(value)}; allowed: 'invstd' or 'variance'")
    return Device(product, value == "variance")


#: The device with these settings, as :func:`_device` finds it.
device = lru_cache(16)(_device)


def set_product(name: str | None, *, save_invstd: str | None = None) -> None:
    """Set the product of all calls outside :func:`product` contexts.

    Args:
        name: a product's name such as "Atlas A2", or a chip's such as "Ascend910B3"; None for the
            environment variable ``NORMGRAD_ACL_PRODUCT``, or Atlas A2 if that is not set.
        save_invstd: "invstd", as in CANN's documents, or "variance", as devices before the Ascend
            950 read saveInvstd: then 1/sqrt(saveInvstd + eps) is computed. None for the environment
            variable ``NORMGRAD_ACL_SAVE_INVSTD``, or "invstd" if that is not set.

    Raises:
        ValueError: an unknown name.
    """
    global _set
    _set = None if name is save_invstd is None else _device(name, save_invstd)


@contextmanager
def product(name: str, *, save_invstd: str | None = None) -> Iterator[Product]:
    """A context that sets the product of its calls in this thread or task.

    The arguments are those of :func:`set_product`.
    """
    device = _device(name, save_invstd)
    before = _within.set(device)
    try:
        yield device.product
    finally:
        _within.reset(before)
