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
    """The error of a failed call.

    Attributes:
        status: the status that the C function returns.
        operator: the function's name without ``GetWorkspaceSize``.
        parameter: the name of the wrong argument, or None.
    """

    wrong_argument = Status.ACLNN_ERR_PARAM_INVALID
    status: Status

    def __init__(
        self, status: Status, operator: str, message: str, parameter: str | None = None
    ) -> None:
        super().__init__(status, operator, message, parameter)
        self.operator = operator
