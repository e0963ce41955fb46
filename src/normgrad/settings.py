"""The error for environment variables with invalid values."""

from __future__ import annotations


class SettingError(ValueError):
    """An environment variable has a value that is not allowed; the message names it."""
