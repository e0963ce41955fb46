"""ATen's operators for norms, and their arguments by the names of normgrad's declarations."""

from __future__ import annotations

from typing import NamedTuple

import torch

from ..operators.by_name import PLANNED


class AtenOperator(NamedTuple):
    """An operator of ATen's: its name, and its arguments' names in normgrad's declaration."""

    name: str
    arguments: tuple[str, ...]


#: What precedes ATen's names of norms and of their gradients; others are named as normgrad's.
_PREFIXES = {
    "batch_norm": "native_", "group_norm": "native_", "layer_norm": "native_",
    "rms_norm": "_fused_",
}  # fmt: skip
#: ATen's names of arguments that normgrad names otherwise.
_RENAMED = {"train": "training", "group": "num_groups"}

#: ATen's operators by the names of normgrad's.
OPERATORS: dict[str, AtenOperator] = {}
for _name in PLANNED:
    _theirs = _PREFIXES.get(_name.removesuffix("_backward"), "") + _name
    if hasattr(torch.ops.aten, _theirs):
        _schema = getattr(torch.ops.aten, _theirs).default._schema
        _arguments = tuple(_RENAMED.get(each.name, each.name) for each in _schema.arguments)
        OPERATORS[_name] = AtenOperator(_theirs, _arguments)
