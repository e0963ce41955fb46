"""Status codes, and the error that carries them."""

from __future__ import annotations

from enum import IntEnum


class Status(IntEnum):
    """The values of aclnnStatus."""

    ACLNN_SUCCESS = 0
    ACLNN_ERR_PARAM_NULLPTR = 161001
    ACLNN_ERR_PARAM_INVALID = 161002
    ACLNN_ERR_RUNTIME_ERROR = 361001
    ACLNN_ERR_INNER = 561000
    ACLNN_ERR_INNER_FIND_KERNEL_ERROR = 561003
    ACLNN_ERR_INNER_NULLPTR = 561103


class AclnnError(ValueError):
    """The error of a failed call.

    Attributes:
        status: the status that the C function returns.
        operator: the function's name without ``GetWorkspaceSize``.
        parameter: the name of the wrong argument, or None.
    """

    def __init__(
        self, status: Status, operator: str, message: str, parameter: str | None = None
    ) -> None:
        super().__init__(f"{operator}: {message}")
        self.status = status
        self.operator = operator
        self.parameter = parameter


def invalid(function: str, parameter: str, message: str) -> AclnnError:
    """The error for an argument that is not allowed."""
    status = Status.ACLNN_ERR_PARAM_INVALID
    return AclnnError(status, function, f"{parameter}: {message}", parameter)
