"""Environment variables: the error for invalid values, and values that are lists of words."""

from __future__ import annotations

import os
import shlex


class SettingError(ValueError):
    """An environment variable has a value that is not allowed; the message names it."""


def words(variable: str) -> list[str]:
    """The words of an environment variable, as a shell splits them; none if it is not set."""
    setting = os.environ.get(variable, "")
    try:
        return shlex.split(setting)
    except ValueError as error:
        reason = str(error).lower()
        raise SettingError(
            f"{variable}: {setting!r} ({reason}); allowed: words, quoted as for a shell"
        ) from None
