"""What `normgrad run` reads, under atheris: contents or an InputError, within the memory promised.

    python tests/fuzz/files_harness.py CORPUS [libFuzzer's options, such as -max_total_time=600]

CORPUS is a folder: seeds are put into it where it is empty. Needs atheris (PyPI), which has no
wheel for every Python.
"""

from __future__ import annotations

import io
import json
import pickle
import struct
import sys
import tempfile
import tracemalloc
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import atheris
import numpy as np

with atheris.instrument_imports(include=["normgrad.cli.archives", "zipfile", "numpy.lib"]):
    from normgrad.cli import archives
    from normgrad.tensors import dtypes

#: Names that `normgrad run` asks for.
_NAMES = ("operator", "training", "eps", "grad_out", "input", "weight", "count")

#: A .npy file that is nothing but header.
_LONG_HEADER = b"\x93NUMPY\x02\x00" + struct.pack("<I", 1 << 20) + b" " * (1 << 20)


def _array(value: Any, version: tuple[int, int] = (1, 0)) -> bytes:
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, np.asarray(value), version)
    return buffer.getvalue()


def _archive(compression: int, **members: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as file:
        for name, content in members.items():
            file.writestr(f"{name}.npy", content)
    return buffer.getvalue()


def _safetensors(header: dict[str, Any], data: bytes) -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def seeds() -> list[bytes]:
    """Small files of every sort."""
    data = np.arange(12, dtype=np.float32).reshape(2, 3, 2)
    members = {
        "operator": _array("batch_norm_backward"),
        "training": _array(True),
        "eps": _array(1e-5),
        "grad_out": _array(data),
        "input": _array(np.asfortranarray(data), (2, 0)),
        "weight": _array(np.ones(3)),
        "count": _array(np.array([3], np.int32)),
    }
    words = {"operator": "group_norm_backward", "num_groups": "1"}
    entries = {
        "input": {"dtype": "F32", "shape": [2, 3, 2], "data_offsets": [0, 48]},
        "weight": {"dtype": "BF16", "shape": [3], "data_offsets": [48, 54]},
    }
    return [
        _archive(zipfile.ZIP_STORED, **members),
        _archive(zipfile.ZIP_DEFLATED, **members),
        _archive(zipfile.ZIP_DEFLATED, input=_array(np.zeros(100_000))),
        _archive(zipfile.ZIP_DEFLATED, input=_LONG_HEADER),
        _archive(zipfile.ZIP_LZMA, input=members["input"]),
        _archive(zipfile.ZIP_STORED),
        _archive(zipfile.ZIP_STORED, input=_array(np.zeros(2, [("a", "f4"), ("b", "i2")]))),
        _safetensors({"__metadata__": words, **entries}, bytes(54)),
        _safetensors(entries, bytes(54)),
        members["input"],
    ]


def _poisoned(*_: Any, **__: Any) -> NoReturn:
    raise AssertionError("something was unpickled")


def _read(path: Path) -> None:
    """Everything that is in a file."""
    with suppress(archives.InputError), archives.reading(path) as contents:
        for name in (*_NAMES, *list(contents.names)[:20], *list(contents.metadata)[:20]):
            with suppress(archives.InputError):
                contents.value(name)
            with suppress(archives.InputError):
                if name in contents.names:
                    contents.tensor(name, (*dtypes.FLOATS, *dtypes.COUNTS))


def main() -> None:
    """Fuzz until libFuzzer's options say that it is enough."""
    corpus = Path(sys.argv[1])
    corpus.mkdir(parents=True, exist_ok=True)
    if not any(corpus.iterdir()):
        for index, seed in enumerate(seeds()):
            (corpus / f"seed{index}").write_bytes(seed)
    folder = Path(tempfile.mkdtemp())
    path = folder / "file"
    for seed in seeds():  # what is imported late is then imported
        path.write_bytes(seed)
        _read(path)
    pickle.loads = pickle.load = pickle.Unpickler = _poisoned  # type: ignore[misc,assignment]

    tracemalloc.start()

    def one(data: bytes) -> None:
        path.write_bytes(data)
        tracemalloc.reset_peak()
        before, _ = tracemalloc.get_traced_memory()
        _read(path)
        _, peak = tracemalloc.get_traced_memory()
        most = archives.MAX_RATIO * len(data) + archives.RATIO_SLACK
        assert peak - before <= most, f"{peak - before} bytes for a file of {len(data)}"

    atheris.Setup(sys.argv, one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
