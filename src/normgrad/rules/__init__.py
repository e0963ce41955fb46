"""Contracts of the dialects, as tables, and the one engine that checks them.

A dialect lists each operator's parameters: when each is needed, which dtypes, formats, ranks and
shapes it may have, and in what a product differs. The tables are data: they are checked, and they
are printed for people to read. What a broken rule means as a status is the dialect's to say.
"""

from __future__ import annotations

from .calls import Aspect, Break, Call, ContractError, Product
from .tables import Always, Contract, IfAsked, MayBeNull, Parameter, Scalar, check
from .tensors import (
    Contiguous,
    DtypeOf,
    DtypeRule,
    Elements,
    FormatOf,
    Formats,
    Length,
    OfProduct,
    OneOf,
    PositiveStrides,
    Rank,
    Rule,
    ShapeOf,
    WithChannels,
)

__all__ = [
    "Always",
    "Aspect",
    "Break",
    "Call",
    "Contiguous",
    "Contract",
    "ContractError",
    "DtypeOf",
    "DtypeRule",
    "Elements",
    "FormatOf",
    "Formats",
    "IfAsked",
    "Length",
    "MayBeNull",
    "OfProduct",
    "OneOf",
    "Parameter",
    "PositiveStrides",
    "Product",
    "Rank",
    "Rule",
    "Scalar",
    "ShapeOf",
    "WithChannels",
    "check",
]
