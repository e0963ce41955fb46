"""What holds for the package as a whole."""

from __future__ import annotations

import ast
import importlib.metadata
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import normgrad

SOURCE = Path(normgrad.__file__).parent

#: The folders, and files that come before their folder's others: each imports only those of lines
#: before its own, and of its own folder.
ORDER = (
    ("support", "bench.timing"),
    ("tensors",),
    ("declarations",),
    ("operators.reference", "operators.precision"),
    ("backends",),
    ("plans",),
    ("operators",),
    ("normgrad",),
    ("dialects", "torch"),
    ("testing",),
    ("bench",),
    ("cli",),
)


def imported(path: Path) -> Iterator[str]:
    """The package's modules that a module imports when it is imported itself."""
    own = [*path.relative_to(SOURCE.parent).with_suffix("").parts]

    def of(statements: list[ast.stmt]) -> Iterator[str]:
        for each in statements:
            if isinstance(each, ast.Import):
                yield from (alias.name for alias in each.names)
            elif isinstance(each, ast.ImportFrom):
                base = own[: -each.level] if each.level else []
                parent = ".".join([*base, *([each.module] if each.module else [])])
                yield from (f"{parent}.{alias.name}" for alias in each.names)
            elif not isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef)):
                is_for_types = isinstance(each, ast.If) and "TYPE_CHECKING" in ast.unparse(
                    each.test
                )
                parts = ("orelse",) if is_for_types else ("body", "orelse", "finalbody")
                for part in parts:
                    yield from of(getattr(each, part, []))
                for handler in getattr(each, "handlers", []):
                    yield from of(handler.body)

    for name in of(ast.parse(path.read_text("utf-8")).body):
        if name.split(".")[0] == SOURCE.name:
            yield name


def module_names() -> dict[str, Path]:
    names = {}
    for path in SOURCE.rglob("*.py"):
        parts = path.relative_to(SOURCE.parent).with_suffix("").parts
        names[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return names


def graph() -> dict[str, set[str]]:
    """The modules that each module imports, by their names."""
    names = module_names()
    found = {}
    for name, path in names.items():
        each = {m if m in names else m.rpartition(".")[0] for m in imported(path)}
        found[name] = each - {name}
    return found


def line_of(module: str) -> int:
    """The line of ``ORDER`` that names a module, or else its folder."""
    below = module.removeprefix(f"{SOURCE.name}.")
    places = {name: line for line, names in enumerate(ORDER) for name in names}
    while below not in places:
        below = below.rpartition(".")[0]
    return places[below]


def folder_of(module: str) -> str:
    return module.split(".")[1] if "." in module else module


def test_no_folder_imports_one_above_it():
    entries = {f"{SOURCE.name}.{name}" for name in ("__main__", "pytest_plugin")}
    upward = [
        f"{module} imports {other}"
        for module, others in graph().items()
        if module not in entries
        for other in others
        if folder_of(module) != folder_of(other) and line_of(module) <= line_of(other)
    ]
    assert not upward


def test_no_module_imports_itself():
    """Neither at once nor through others."""
    assert len([*TopologicalSorter(graph()).static_order()]) == len(module_names())


def python(code: str, **environment: str) -> str:
    import os

    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_importing_is_light():
    """Neither Numba nor torch is loaded, nor anything of the command line."""
    loaded = python("import normgrad, sys; print(*sys.modules)").split()
    for module in ("numba", "llvmlite", "torch", "typer", "rich", "matplotlib", "safetensors"):
        assert module not in loaded
    assert "numpy" in loaded


def test_importing_loads_few_modules():
    """What NumPy does not load itself is little: importing stays quick."""
    extra = python(
        "import sys, numpy; before = set(sys.modules); import normgrad; "
        "print(*sorted(m for m in set(sys.modules) - before if not m.startswith('normgrad')))"
    ).split()
    assert len(extra) < 80, extra


def test_torch_is_not_imported_by_a_call():
    assert (
        python(
            "import sys, numpy as np, normgrad\n"
            "x = np.ones((2, 3, 4), np.float32)\n"
            "result = normgrad.batch_norm_backward(x, x, training=True)\n"
            "print(result.grad_bias, 'torch' in sys.modules)"
        )
        == "[8. 8. 8.] False"
    )


def test_a_first_call_imports_nothing_that_a_fork_would_not_wait_for():
    """What is imported while another thread forks stays locked in the child for ever."""
    assert (
        python(
            "import sys, numpy as np\n"
            "from normgrad.dialects.c import bridge\n"
            "from normgrad.dialects import aclnn\n"
            "from normgrad.dialects.aclnn import tensor as t\n"
            "from normgrad.support.forks import LOADING\n"
            "class Finder:\n"
            "    def find_spec(self, name, path=None, target=None):\n"
            "        if not LOADING._is_owned():\n"
            "            print(name)\n"
            "sys.meta_path.insert(0, Finder())\n"
            "x = np.ones((2, 3, 4), np.float32)\n"
            "v = np.ones(3, np.float32)\n"
            "size, executor = aclnn.aclnnBatchNormBackwardGetWorkspaceSize(\n"
            "    t(x), t(x), t(v), None, None, t(v), t(v), True, 1e-5, [True, False, False],\n"
            "    t(np.empty_like(x)), None, None)\n"
            "aclnn.aclnnBatchNormBackward(np.empty(size, np.uint8), size, executor)"
        )
        == ""
    )


def test_version():
    assert normgrad.__version__ == importlib.metadata.version("normgrad")


def test_the_changelog_has_this_version():
    changelog = (SOURCE.parents[1] / "CHANGELOG.md").read_text("utf-8")
    assert f"\n## {normgrad.__version__} (" in changelog


def test_it_is_typed():
    assert (SOURCE / "py.typed").exists()


def test_public_names():
    assert set(normgrad.__all__) <= set(dir(normgrad))
    for name in normgrad.__all__:
        thing = getattr(normgrad, name)
        assert name == "__version__" or thing.__doc__
