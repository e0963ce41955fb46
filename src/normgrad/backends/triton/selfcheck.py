"""The check of the kernels on each kind of GPU, at their first use there.

The kernels compute small cases of every operator on that GPU, and the results are compared with the
float64 oracle in units of the error bound. The verdict is kept on disk for later processes.
"""

from __future__ import annotations

import json
import logging
import re
import threading
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import date
from functools import cache
from importlib import metadata
from pathlib import Path

from ... import cache as folders
from ...loading import KernelError, loading
from .device import Device

_logger = logging.getLogger("normgrad")

_PACKAGES = ("normgrad", "torch", "triton")

#: The maximum number of results outside the bound that a verdict names.
_SHOWN = 3

#: The lock on the check of a GPU. It is re-entrant, since the check's own plans take it too.
_lock = threading.RLock()
_checking = False
_known: dict[Device, Verdict] = {}


@dataclass(frozen=True)
class Verdict:
    """The result of a check.

    Attributes:
        checked: the day of the check, such as 2026-11-22.
        cases: the number of cases.
        failure: a description of the results outside the bound; "" if there are none.
    """

    checked: str
    cases: int
    failure: str

    def __str__(self) -> str:
        outcome = self.failure or f"all {self.cases} cases within the bound"
        return f"checked on {self.checked}: {outcome}"


@cache
def _sources() -> str:
    """A digest of this backend's files."""
    return folders.digest_of(sorted(Path(__file__).parent.glob("*.py")))


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:  # the distribution has another name
        return "unknown"


def _subject(name: str) -> dict[str, str]:
    """The versions and sources that a verdict holds for."""
    return {"gpu": name, "sources": _sources(), **{each: _version(each) for each in _PACKAGES}}


def _slug(name: str) -> str:
    """The name of a kind of GPU as a part of files' names."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def path_of(name: str) -> Path:
    """The file of the verdict on GPUs of this name, in the user's cache folder."""
    return folders.folder() / folders.GPU / f"{_slug(name)}.json"


def read(name: str) -> Verdict | None:
    """The verdict on disk; None if there is none, or it is about other versions."""
    with suppress(Exception):  # the file may be missing, and a damaged one may raise anything
        record = json.loads(folders.read(path_of(name)) or b"")
        if _subject(name) == record["subject"]:
            return Verdict(str(record["checked"]), int(record["cases"]), str(record["failure"]))
    return None


def _write(device: Device, verdict: Verdict) -> None:
    content = {"subject": _subject(device.name), **asdict(verdict)}
    with suppress(OSError):  # then every process checks
        folders.write(path_of(device.name), json.dumps(content, indent=1).encode())


def settled(where: str, device: Device) -> bool:
    """Whether the kernels are known to be right on a GPU; they are checked if there is no verdict.

    Args:
        where: the GPU's name, such as "cuda:0".
        device: the description of the same GPU.

    Returns:
        False if the caller has to ask again later: in the check itself, and while a CUDA graph is
        captured or a program is traced, since results cannot be read then.

    Raises:
        KernelError: the kernels give wrong results there. An exception that ends the check early
            propagates, and leaves no verdict.
    """
    with _lock:
        if _checking:
            return False
        verdict = _known.get(device) or read(device.name)
        if verdict is None:
            if _is_recorded(where):
                return False
            work = f"checks GPU kernels for {device.name}"
            with folders.alone(folders.GPU, _slug(device.name), work):
                verdict = read(device.name) or _checked(where, device)
        _known[device] = verdict
    if verdict.failure:
        raise KernelError(
            f"{where}: kernels that give wrong results on {device.name}, with Triton "
            f"{_version('triton')} and PyTorch {_version('torch')} ({verdict}); allowed: another "
            "device. Please report it, with what `normgrad info` shows; delete "
            f"{path_of(device.name)} to have the next process check again"
        )
    return True


def _checked(where: str, device: Device) -> Verdict:
    """Check a GPU, and write the verdict to disk."""
    global _checking
    # A warning is visible without logging configuration, and the check takes as long as compiling
    # the kernels.
    _logger.warning("checking GPU kernels once for %s", device.name)
    _checking = True
    try:
        verdict = check(where, device)
    finally:
        _checking = False
    _write(device, verdict)
    return verdict


def _is_recorded(where: str) -> bool:
    """Whether PyTorch captures, traces or fakes calls rather than executing them."""
    import torch

    if torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack():
        return True
    with torch.cuda.device(where):
        return bool(torch.cuda.is_current_stream_capturing())


def check(where: str, device: Device) -> Verdict:
    """Compute all cases on a device, "cuda:0", or "cpu" for Triton's interpreter."""
    with loading():
        from . import small_cases
    cases = small_cases.cases(device.persistent)
    wrong = [words for case in cases for words in small_cases.outside(case, where)]
    failure = "; ".join(wrong[:_SHOWN])
    if len(wrong) > _SHOWN:
        failure += f"; and {len(wrong) - _SHOWN} results more"
    return Verdict(date.today().isoformat(), len(cases), failure)
