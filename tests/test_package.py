"""What holds for the package as a whole."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from pathlib import Path

import normgrad

SOURCE = Path(normgrad.__file__).parent


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
