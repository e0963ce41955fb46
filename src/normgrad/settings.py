"""What environment variables may say."""

from __future__ import annotations


class SettingError(ValueError):
    """An environment variable that says what it may not; the message names it."""
