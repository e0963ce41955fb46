"""``normgrad aclnn contract``: what each argument may be, on which product."""

from __future__ import annotations

from typing import Annotated

import typer

from ..dialects.rules import Contract, Product, ScalarRow, TensorRow
from . import show
from .archives import InputError

app = typer.Typer(
    cls=show.Commands, help="The aclnn dialect.", no_args_is_help=True, add_completion=False
)


@app.callback()
def _aclnn() -> None:
    pass


@app.command("contract")
def contract(
    operator: Annotated[
        str | None, typer.Argument(metavar="OPERATOR", help="Such as aclnnGroupNormBackward.")
    ] = None,
    product: Annotated[
        str | None,
        typer.Option(metavar="P", help="A product or a chip, such as 'Atlas A2', Ascend950PR."),
    ] = None,
) -> None:
    """Print the contract of an operator, or of all: the rules by which calls are checked."""
    from ..dialects.aclnn.contracts import CONTRACTS
    from ..dialects.aclnn.products import PRODUCTS, find

    contracts = _select(operator, CONTRACTS)
    try:
        one = None if product is None else find(product)
    except ValueError as error:
        raise InputError("--product", str(error).removeprefix("product: ")) from None
    for each in contracts:
        able = [p for p in PRODUCTS if each.name in p.operators]
        _print(each, one or (able[0] if len(able) == 1 else None), able)


def _select(operator: str | None, contracts: dict[str, Contract]) -> list[Contract]:
    if operator is None:
        return list(contracts.values())
    folded = operator.casefold()
    for name, contract in contracts.items():
        if folded in (name.casefold(), name.casefold().removeprefix("aclnn")):
            return [contract]
    raise InputError("OPERATOR", f"{operator!r}; allowed: {', '.join(contracts)}")


def _print(contract: Contract, product: Product | None, able: list[Product]) -> None:
    """Print a contract's table, for one product, or for all with a line for each exception."""
    everywhere = ", ".join(each.name for each in able)
    if product is not None and product not in able:
        typer.echo(f"{contract.name}: not on {product.name}; on {everywhere}\n")
        return
    rows: list[tuple[str, ...]] = []
    for row in contract.rows:
        if isinstance(row, ScalarRow):
            rows.append((row.name, row.text, "", "", "", ""))
        elif product is not None:
            rows.append(_cells(row.on(product.name), product))
        else:
            rows.append(_cells(row, None))
            rows += [_exception(row, name) for name in row.exceptions]
    where = product.name if product else everywhere
    if product and product.dtypes:
        where += f" ({', '.join(product.dtypes)})"
    header = ("parameter", "when", "dtype", "format", "axes", "shape")
    show.columns(header, rows, title=f"{contract.name} on {where}")


def _cells(row: TensorRow, product: Product | None) -> tuple[str, ...]:
    dtypes = [
        ", ".join(product.dtypes) if product and str(rule) == "by product" else str(rule)
        for rule in row.dtypes
    ]
    return (
        row.name,
        str(row.when) + ", updated" * row.is_updated,
        "; ".join(dtypes),
        "; ".join(map(str, row.formats)),
        str(row.rank or ""),
        str(row.shape or "any"),
    )


def _exception(row: TensorRow, product: str) -> tuple[str, ...]:
    usual, here = _cells(row, None), _cells(row.on(product), None)
    changed = [now if now != then else "" for then, now in zip(usual, here, strict=True)]
    return (f"  {product}", *changed[1:])
