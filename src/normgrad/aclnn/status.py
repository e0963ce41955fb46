"""Status codes, and the error that carries them."""

from __future__ import annotations

from enum import IntEnum

from ..dialects import DialectError


class Status(IntEnum):
    """The values of aclnnStatus."""

    ACLNN_SUCCESS = 0
    ACLNN_ERR_PARAM_NULLPTR = 161001
    ACLNN_ERR_PARAM_INVALID = 161002
    ACLNN_ERR_RUNTIME_ERROR = 361001
    ACLNN_ERR_INNER = 561000
    ACLNN_ERR_INNER_FIND_KERNEL_ERROR = 561003
    ACLNN_ERR_INNER_NULLPTR = 561103


class AclnnError(DialectError):
    """The error of a failed call: its ``status``, ``operator``, and ``parameter`` or None."""

    wrong_argument = Status.ACLNN_ERR_PARAM_INVALID
    status: Status

    @property
    def operator(self) -> str:
        """The function's name without ``GetWorkspaceSize``."""
        return self.function
