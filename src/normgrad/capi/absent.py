"""What the vendors' libraries have and these lack, from absent.txt: declarations, and stubs.

A program that includes a header of it compiles, and links. A stub does nothing but return "not
supported", with a text that says what there is instead.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from importlib import resources

from ..aclnn.status import Status as aclnnStatus
from ..infiniop import infiniStatus_t

#: The status of a stub, by the C type of its result; others return 0, or nothing.
_STATUSES = {
    "aclError": "ACL_ERROR_API_NOT_SUPPORT",
    "HcclResult": "HCCL_E_NOT_SUPPORT",
    "aclnnStatus": f"{aclnnStatus.ACLNN_ERR_INNER_FIND_KERNEL_ERROR:d}",
    "infiniStatus_t": infiniStatus_t.INFINI_STATUS_NOT_IMPLEMENTED.name,
    "void": "",
}
#: The library of each dialect's operators, the folder of their headers, what these include, and the
#: C type and the names of each operator's functions.
_OPERATORS = {
    "aclnn": (
        "opapi", "aclnnop/aclnn_{}.h", '"../aclnn/aclnn_base.h"', "aclnnStatus",
        ("aclnn{}GetWorkspaceSize", "aclnn{}"),
    ),
    "infiniop": (
        "infiniop", "infiniop/ops/{}.h", '"../operator_descriptor.h"', "infiniStatus_t",
        ("infiniopCreate{}Descriptor", "infiniopGet{}WorkspaceSize", "infiniop{}",
         "infiniopDestroy{}Descriptor"),
    ),
}  # fmt: skip

#: The parameters of a stub's declaration: any in C++ and in C23, unspecified in C before.
ANY = """\
#ifndef NORMGRAD_ANY
#if defined(__cplusplus) || (defined(__STDC_VERSION__) && __STDC_VERSION__ > 201710L)
#define NORMGRAD_ANY ...
#else
#define NORMGRAD_ANY
#endif
#endif"""


@dataclass(frozen=True)
class Stub:
    """A function that is absent.

    Attributes:
        name, returns: the function's name, and the C type of its result.
    """

    name: str
    returns: str

    @property
    def declaration(self) -> str:
        """The declaration in C and C++, with any parameters."""
        return f"{self.returns} {self.name}(NORMGRAD_ANY);"

    def definition(self, present: Iterable[str]) -> str:
        """The definition in C; its text names what there is."""
        status = _STATUSES.get(self.returns, "0")
        if self.name.startswith("aclnn") and not self.name.endswith("GetWorkspaceSize"):
            status = f"{aclnnStatus.ACLNN_ERR_RUNTIME_ERROR:d}"  # as of every phase 2
        there = ", ".join(_similar(self.name, present))
        body = f'    static int told;\n    normgrad_capi_absent(__func__, "{there}", &told);\n'
        return f"EXPORTED {self.returns} {self.name}(void)\n{{\n{body}    return {status};\n}}"


def _similar(name: str, present: Iterable[str]) -> list[str]:
    """All operators for an operator, otherwise the three functions of the most similar names."""
    names = list(present)
    for family in ("aclnn", "infiniop"):
        if name.startswith(family):
            sizes = [re.fullmatch(rf"({family}.*)GetWorkspaceSize", each) for each in names]
            sizes += [re.fullmatch(r"(infiniop)Get(.*)WorkspaceSize", each) for each in names]
            return ["".join(each.groups()) for each in sizes if each]
    return [*difflib.get_close_matches(name, names, 3, 0), "what `normgrad capi functions` lists"]


@dataclass
class Absent:
    """What a header declares although it is absent.

    Attributes:
        library: the library that has the stubs.
        includes: the files that the header includes, as written there.
        types: definitions of types.
        stubs: the functions.
    """

    library: str
    includes: tuple[str, ...] = ()
    types: list[str] = field(default_factory=list)
    stubs: list[Stub] = field(default_factory=list)


@cache
def absent() -> dict[str, Absent]:
    """All headers that declare something absent, by path."""
    found: dict[str, Absent] = {}
    for line in _lines():
        kind, _, rest = line.partition(" ")
        if kind == "header":
            path, library, *includes = rest.split()
            quoted = tuple(f'"{each}"' for each in includes)
            header = found[path] = Absent(library, quoted)
        elif kind == "operators":
            dialect, _, lists = rest.partition(" ")
            library, path, include, returns, names = _OPERATORS[dialect]
            for each in lists.split(","):
                name, _, operators = each.strip().partition(": ")
                stubs = [
                    Stub(function.format(operator), returns)
                    for operator in operators.split()
                    for function in names
                ]
                found[path.format(name)] = Absent(library, (include,), [], stubs)
        elif kind == "text":
            header.types.append(rest)
        elif kind in ("struct", "pointer"):
            typedef = "typedef struct {0} {0};" if kind == "struct" else "typedef void *{0};"
            header.types += map(typedef.format, rest.split())
        elif kind == "enum":
            name, *values = rest.split()
            listed = ",\n".join(f"    {value.replace('=', ' = ')}" for value in values)
            header.types.append(f"typedef enum {name} {{\n{listed}\n}} {name};")
        else:
            returns, _, functions = line.partition(": ")
            header.stubs += [Stub(name, returns) for name in functions.split()]
    return found


def _lines() -> Iterator[str]:
    """The logical lines of absent.txt: lines that begin with a space continue the one before."""
    text = resources.files(__package__).joinpath("absent.txt").read_text("utf-8")
    for line in re.sub(r"\n +", " ", text).splitlines():
        if line and not line.startswith("#"):
            yield line
