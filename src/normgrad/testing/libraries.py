"""Shared libraries that speak one of the dialects, as implementations to be tried."""

from __future__ import annotations

from .aclnn_library import ACLNN, AclnnLibrary
from .c_functions import open_library
from .infiniop_library import INFINIOP, InfiniopLibrary
from .subjects import Implementation


def load_library(path: str) -> Implementation:
    """A shared library; which dialect it speaks its functions say.

    Raises:
        SubjectError: there is no such file, or it is no library, or speaks neither.
    """
    dialect, functions = open_library(path, (INFINIOP, ACLNN))
    return (InfiniopLibrary if dialect is INFINIOP else AclnnLibrary)(path, functions)
