"""Run a page's blocks in order, in one process, which tests/test_documentation.py starts.

Standard input is a JSON list of steps: Python code, which shares one namespace, bash commands, and
files to write. Standard output is the list of their outputs. A step that fails ends the program.
"""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any


def _python(step: dict[str, Any], namespace: dict[str, Any]) -> str:
    # Keep the page's line numbers, so that tracebacks and `inspect` point into the page.
    code = compile("\n" * step["line"] + step["code"], step["path"], "exec")
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(code, namespace)
    return printed.getvalue()


def _bash(step: dict[str, Any]) -> str:
    command = ["bash", "-euo", "pipefail", "-c", step["code"]]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.exit(f"{step['path']}:{step['line']}: status {done.returncode}\n{done.stdout}")
    return done.stdout


def _main() -> None:
    sys.path.insert(0, "")  # files that a page has written can be imported, as from a prompt
    namespace: dict[str, Any] = {"__name__": "__main__"}
    printed = []
    for step in json.load(sys.stdin):
        if step["file"]:
            Path(step["file"]).write_text(step["code"], "utf-8")
            printed.append("")
        elif step["language"] == "python":
            printed.append(_python(step, namespace))
        else:
            printed.append(_bash(step))
    json.dump(printed, sys.stdout)


if __name__ == "__main__":
    _main()
