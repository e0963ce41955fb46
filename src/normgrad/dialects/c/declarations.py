"""The headers of the C libraries, and the functions that they declare.

Most headers are files (the folder ``include``). Those of CANN's operators follow from the contracts
of these, and those of operators that the libraries lack from a list of names (operators.txt).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import resources
from pathlib import Path

from ..aclnn import contracts, products
from ..rules import Contract, Parameter, Scalar
from .signatures import Function

FOLDER = Path(str(resources.files(__package__)))

#: The C types of arguments that are not tensors, by the beginning of their texts in the contracts,
#: each with the letter and the field of phase 1's values in opapi.c.
_SCALARS = {
    "bool": ("bool ", "b", "boolean"),
    "double": ("double ", "d", "real"),
    "int64": ("int64_t ", "i", "integer"),
    "aclBoolArray": ("const aclBoolArray *", "M", "handle"),
}

#: The inputs that are not constant, as in CANN's prototypes, and the outputs that are.
_NOT_CONSTANT = {products.ELEMT: ("counter",), products.FORWARD_ELEMT: ("mean", "invstd")}
_CONSTANT = {products.RMS_NORM: ("yOut", "rstdOut")}

#: The headers of each dialect's operators, what these include, the type of their statuses, and the
#: names of each operator's functions.
_OPERATORS = {
    "aclnn": (
        "aclnnop/aclnn_{}.h", "../aclnn/aclnn_base.h", "aclnnStatus",
        ("aclnn{}GetWorkspaceSize", "aclnn{}"),
    ),
    "infiniop": (
        "infiniop/ops/{}.h", "../operator_descriptor.h", "infiniStatus_t",
        ("infiniopCreate{}Descriptor", "infiniopGet{}WorkspaceSize", "infiniop{}",
         "infiniopDestroy{}Descriptor"),
    ),
}  # fmt: skip

#: The libraries of headers, by the beginning of their paths.
_LIBRARIES = {
    "aclnnop/": "opapi", "aclnn/": "nnopbase", "acl/": "ascendcl", "hccl/": "hccl",
    "infiniop": "infiniop", "infini": "infinirt",
}  # fmt: skip


@dataclass(frozen=True)
class Header:
    """A header file for host programs: its path in the include folder, and its text."""

    path: str
    text: str

    @property
    def library(self) -> str:
        """The library that exports the functions, such as "opapi"."""
        return next(each for start, each in _LIBRARIES.items() if self.path.startswith(start))

    @cached_property
    def functions(self) -> tuple[Function, ...]:
        """The functions that the header declares, and the library has."""
        found = re.findall(r"^(\w[\w ]*[ *])(\w+)\(([^;]*)\);", self.text, re.M)
        return tuple(
            Function(self.library, kind.strip(), name, " ".join(parameters.split()))
            for kind, name, parameters in found
            if not kind.startswith("typedef")
        )

    @cached_property
    def stubs(self) -> tuple[Function, ...]:
        """The functions that the header declares although the library lacks them."""
        found = re.findall(r"NORMGRAD_ABSENT\w*\((?:([^,()]+), )?(\w+)\)", self.text)
        return tuple(Function(self.library, kind or "void", name) for kind, name in found)


def _header(path: str, includes: Iterable[str], declarations: Iterable[str]) -> Header:
    guard = "NORMGRAD_" + re.sub(r"\W", "_", path).upper()
    parts = [
        "// Made by `normgrad capi build`.",
        f"#ifndef {guard}\n#define {guard}",
        "\n".join(f'#include "{each}"' for each in includes),
        '#ifdef __cplusplus\nextern "C" {\n#endif',
        "\n".join(declarations),
        "#ifdef __cplusplus\n}\n#endif",
        "#endif",
    ]
    return Header(path, "\n\n".join(parts) + "\n")


def _argument(operator: str, row: Parameter | Scalar) -> str:
    if isinstance(row, Scalar):
        return _scalar(row)[0] + row.name
    is_variable = row.is_output or row.is_updated or row.name in _NOT_CONSTANT.get(operator, ())
    is_constant = not is_variable or row.name in _CONSTANT.get(operator, ())
    return f"{'const ' * is_constant}aclTensor *{row.name}"


def _scalar(row: Scalar) -> tuple[str, str, str]:
    return _SCALARS[re.split(r"\W", row.text)[0]]


def _prototypes(contract: Contract) -> tuple[str, str]:
    """Phase 1 has the contract's arguments, phase 2 always the same ones."""
    arguments = ", ".join(_argument(contract.name, row) for row in contract.rows)
    return (
        f"aclnnStatus {contract.name}GetWorkspaceSize({arguments}, uint64_t *workspaceSize, "
        "aclOpExecutor **executor)",
        f"aclnnStatus {contract.name}(void *workspace, uint64_t workspaceSize, "
        "aclOpExecutor *executor, aclrtStream stream)",
    )


def _operator_header(contract: Contract) -> Header:
    words = re.sub("(?=[A-Z])", "_", contract.name).lower().removeprefix("aclnn_")
    words = words.replace("_reduce_backward", "_backward_reduce")  # as CANN names that header
    path, include, *_ = _OPERATORS["aclnn"]
    return _header(path.format(words), [include], (f"{each};" for each in _prototypes(contract)))


def operators_source() -> str:
    """The C source of the exported functions of CANN's operators, which opapi.c includes."""
    parts = []
    for contract in contracts.CONTRACTS.values():
        name, (check, compute) = contract.name, _prototypes(contract)
        rows, values = [], []
        for row in contract.rows:
            is_output = isinstance(row, Parameter) and row.is_output
            _, letter, field = _scalar(row) if isinstance(row, Scalar) else ("", "T", "handle")
            rows.append(f"{{\"{row.name}\", '{letter}', {str(is_output).lower()}}}")
            values.append(f"{{.{field} = {row.name}}}")
        parts.append(
            f'static const struct operator OF_{name} = {{"{name}", {len(rows)}, '
            f"{{{', '.join(rows)}}}}};\n"
            f"API {check}\n{{\n    BEGIN(&OF_ACLNN);\n"
            f"    const union value values[] = {{{', '.join(values)}}};\n"
            f"    return phase_1(call, &OF_{name}, values, workspaceSize, executor);\n}}\n"
            f"API {compute}\n{{\n    BEGIN(&OF_PHASE_2);\n"
            f"    return phase_2(call, &OF_{name}, workspace, workspaceSize, executor, stream);\n"
            "}\n"
        )
    return "\n".join(parts)


def _absent() -> Iterator[Header]:
    """The headers of the operators that are absent."""
    text = FOLDER.joinpath("operators.txt").read_text("utf-8")
    for line in re.sub(r"\n +", " ", text).splitlines():  # a space continues the line before
        kind, _, rest = line.partition(" ")
        if kind != "operators":
            continue
        dialect, _, lists = rest.partition(" ")
        path, include, status, functions = _OPERATORS[dialect]
        for each in lists.split(","):
            name, _, operators = each.strip().partition(": ")
            stubs = [
                f"NORMGRAD_ABSENT({status}, {function.format(operator)})"
                for operator in operators.split()
                for function in functions
            ]
            absent = f"{'../' * path.count('/')}normgrad_absent.h"
            yield _header(path.format(name), [include, absent], stubs)


def absent_source() -> str:
    """The C source by which absent.c defines all stubs."""
    includes = "".join(f'#include "{each.path}"\n' for each in HEADERS if each.stubs)
    macros = [
        found[0]
        for header in HEADERS
        for found in re.finditer(r"NORMGRAD_ABSENT\w*\([^()]*\)", header.text)
    ]
    names = f'#define ACLNN_OPERATORS "{", ".join(contracts.CONTRACTS)}"\n'
    return f"{includes}{names}#define ABSENT_FUNCTIONS {' '.join(macros)}\n"


def _headers() -> Iterator[Header]:
    include = FOLDER / "include"
    files = [
        Header(path.relative_to(include).as_posix(), path.read_text("utf-8"))
        for path in sorted(include.rglob("*.h"))
        if path.name != ABSENT
    ]
    absent = list(_absent())
    # The header of all of infiniop's operators includes each.
    for header in files:
        if header.path == "infiniop.h":
            paths = [each.path for each in absent if each.path.startswith("infiniop/")]
            includes = "".join(f'#include "{path}"\n' for path in paths)
            marker = '#include "infiniop/tensor_descriptor.h"\n'
            yield Header(header.path, header.text.replace(marker, marker + includes))
        else:
            yield header
    yield from map(_operator_header, contracts.CONTRACTS.values())
    yield from absent


#: The header that declares what is absent, which others include.
ABSENT = "normgrad_absent.h"
HEADERS: Sequence[Header] = tuple(_headers())


@dataclass(frozen=True)
class Dialect:
    """The libraries that host programs of one dialect link with, and the one that they all are."""

    name: str
    description: str
    libraries: tuple[str, ...]

    @property
    def library(self) -> str:
        """The library that has the functions of all the dialect's libraries."""
        return f"normgrad_{self.name}"


DIALECTS = (
    Dialect("aclnn", "CANN's aclnn calls, on the CPU", ("opapi", "nnopbase", "hccl", "ascendcl")),
    Dialect("infiniop", "InfiniCore's infiniop calls, on the CPU", ("infiniop", "infinirt")),
)


@cache
def functions_of(library: str) -> tuple[Function, ...]:
    """The functions that a library exports."""
    return tuple(
        function for each in HEADERS if each.library == library for function in each.functions
    )


@cache
def digest() -> str:
    """A digest of the sources: a library and the Python package that it asks must agree on it."""
    files = [*sorted(FOLDER.glob("*.[ch]")), FOLDER / "bridge.py"]
    content = b"".join(each.read_bytes() for each in files)
    return hashlib.sha256(content + operators_source().encode()).hexdigest()[:16]
