"""The notices that normgrad logs of its own accord, by the logger ``normgrad``."""

from __future__ import annotations

import logging
import os

#: The environment variable that turns notices off ("1").
QUIET = "NORMGRAD_QUIET"


def say(message: str, *values: object) -> None:
    """Log one line; without a handler of the program's, Python prints it on stderr."""
    if not os.environ.get(QUIET, "").strip("0 "):
        logging.getLogger("normgrad").warning(message, *values)
