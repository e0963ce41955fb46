"""The headers of the C libraries, and the functions that they declare.

The folder ``include`` has what most headers declare. The headers of CANN's operators follow from
the contracts of these, and what the libraries lack from a list of names (absent.txt).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cache, cached_property
from importlib import resources
from pathlib import Path

from ..aclnn import contracts, products
from ..aclnn.tensors import FORMAT_NAMES, NUMPY, TYPE_NAMES, aclDataType, aclFormat
from ..infiniop.enumerations import infiniDevice_t, infiniDtype_t, infiniStatus_t
from ..rules import Contract, ScalarRow, TensorRow
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

#: The enumerations at the beginning of headers, of which Python has the numbers.
_ENUMERATIONS: Mapping[str, Sequence[type[IntEnum]]] = {
    "acl/acl_base.h": (aclDataType, aclFormat),
    "infinicore.h": (infiniStatus_t, infiniDevice_t, infiniDtype_t),
}

#: The types of results that are statuses.
_STATUSES = ("aclError", "aclnnStatus", "HcclResult", "infiniStatus_t")

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


def _header(path: str, text: str) -> Header:
    """A header around a text, which begins with a paragraph of includes."""
    guard = "NORMGRAD_" + re.sub(r"\W", "_", path).upper()
    includes, _, declarations = text.partition("\n\n")
    parts = [
        "// Made by `normgrad capi build`.",
        f"#ifndef {guard}\n#define {guard}",
        f'{includes.strip()}\n#include "{"../" * path.count("/")}{ABSENT}"',
        '#ifdef __cplusplus\nextern "C" {\n#endif',
        declarations.strip(),
        "#ifdef __cplusplus\n}\n#endif",
        "#endif",
    ]
    return Header(path, "\n\n".join(parts) + "\n")


def _argument(operator: str, row: TensorRow | ScalarRow) -> str:
    if isinstance(row, ScalarRow):
        return _scalar(row)[0] + row.name
    is_variable = row.is_output or row.is_updated or row.name in _NOT_CONSTANT.get(operator, ())
    is_constant = not is_variable or row.name in _CONSTANT.get(operator, ())
    return f"{'const ' * is_constant}aclTensor *{row.name}"


def _scalar(row: ScalarRow) -> tuple[str, str, str]:
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
    check, compute = _prototypes(contract)
    return _header(path.format(words), f'#include "{include}"\n\n{check};\n{compute};')


def operators_source() -> str:
    """The C source of the exported functions of CANN's operators, which opapi.c includes."""
    parts = []
    for contract in contracts.CONTRACTS.values():
        name, (check, compute) = contract.name, _prototypes(contract)
        rows, values = [], []
        for row in contract.rows:
            is_output = isinstance(row, TensorRow) and row.is_output
            _, letter, field = _scalar(row) if isinstance(row, ScalarRow) else ("", "T", "handle")
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


def _enumeration(kind: type[IntEnum]) -> str:
    members = ",\n    ".join(f"{each.name} = {each.value}" for each in kind)
    return f"typedef enum {kind.__name__} {{\n    {members}\n}} {kind.__name__};\n\n"


def types_source() -> str:
    """The C source of tables: the names of types and formats, elements' sizes, and other names.

    Indices of types and formats are one more than the numbers, which begin at -1.
    """
    hccl = FOLDER.joinpath("include/hccl/hccl_types.h").read_text("utf-8")
    sizes = {each: dtype.itemsize for each, dtype in NUMPY.items()}  # others have none here
    names = {
        "FORMATS": [f'[{i + 1}] = "{name}"' for i, name in FORMAT_NAMES.items()],
        "DEVICES": [f'"{each.name}"' for each in infiniDevice_t],
        "HCCL_RESULTS": [f'"{name}"' for name in re.findall(r"HCCL_(?:SUCCESS|E_\w+)", hccl)],
    }
    types = [f'[{i + 1}] = {{"{name}", {sizes.get(i, 0)}}}' for i, name in TYPE_NAMES.items()]
    tables = {"struct { const char *name; size_t size; } TYPES": types}
    tables |= {f"char *const {table}": entries for table, entries in names.items()}
    return "".join(f"static const {each}[] = {{{', '.join(tables[each])}}};\n" for each in tables)


def _absent() -> Mapping[str, str]:
    """The texts that declare the absent functions, by the paths of their headers."""
    texts: dict[str, str] = {}
    for paragraph in FOLDER.joinpath("absent.txt").read_text("utf-8").split("\n\n")[1:]:
        kind, target, lists = " ".join(paragraph.split()).split(" ", 2)
        for each in lists.split(", "):
            key, names = each.split(": ")
            if kind == "functions":
                texts[target] = texts.get(target, "\n\n") + _stubs(key, names.split())
            else:
                path, include, status, patterns = _OPERATORS[target]
                functions = [pattern.format(name) for name in names.split() for pattern in patterns]
                texts[path.format(key)] = f'#include "{include}"\n\n{_stubs(status, functions)}'
    return texts


def _stubs(result: str, functions: Sequence[str]) -> str:
    if result == "void":
        return "".join(f"NORMGRAD_ABSENT_VOID({each})\n" for each in functions)
    macro = "NORMGRAD_ABSENT" if result in _STATUSES else "NORMGRAD_ABSENT_VALUE"
    return "".join(f"{macro}({result}, {each})\n" for each in functions)


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
    include, absent = FOLDER / "include", dict(_absent())
    for file in sorted(include.rglob("*.h")):
        path = file.relative_to(include).as_posix()
        text = file.read_text("utf-8")
        enumerations = "".join(map(_enumeration, _ENUMERATIONS.get(path, ())))
        text = text.replace("\n\n", f"\n\n{enumerations}", 1)
        if path == "infiniop.h":  # which includes each operator's header
            text = "".join(f'#include "{each}"\n' for each in absent if "infiniop/" in each) + text
        if path != ABSENT:
            yield _header(path, text + absent.pop(path, ""))
    yield from map(_operator_header, contracts.CONTRACTS.values())
    yield from (_header(path, text) for path, text in absent.items())


#: The header that declares what is absent, which all others include.
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
    content += (operators_source() + types_source()).encode()
    return hashlib.sha256(content).hexdigest()[:16]
