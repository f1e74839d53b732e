"""Refusals: errors that become the status of an answer.

Clients get errors as a :class:`Code` and a text in the answer, never as an error of gRPC itself.
"""

from __future__ import annotations

import logging
from typing import Any, Final

from rocketpost.codec.codes import ResponseCode
from rocketpost.errors import (
    Fault,
    RemoteProtocolError,
    RequestTimeout,
    RocketpostError,
    RouteNotFound,
)
from rocketpost.proxy.wire.enums import Code
from rocketpost.proxy.wire.messages import Status

logger = logging.getLogger(__name__)

_TEXT_LENGTH_MAX: Final = 2048
_BY_RESPONSE: Final[dict[int, Code]] = {
    ResponseCode.SYSTEM_BUSY: Code.TOO_MANY_REQUESTS,
    ResponseCode.POLLING_FULL: Code.TOO_MANY_REQUESTS,
    ResponseCode.REQUEST_CODE_NOT_SUPPORTED: Code.NOT_IMPLEMENTED,
    ResponseCode.TOPIC_NOT_EXIST: Code.TOPIC_NOT_FOUND,
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST: Code.CONSUMER_GROUP_NOT_FOUND,
    ResponseCode.SUBSCRIPTION_PARSE_FAILED: Code.ILLEGAL_FILTER_EXPRESSION,
    ResponseCode.NO_PERMISSION: Code.FORBIDDEN,
    ResponseCode.SLAVE_NOT_AVAILABLE: Code.HA_NOT_AVAILABLE,
    ResponseCode.FLUSH_DISK_TIMEOUT: Code.MASTER_PERSISTENCE_TIMEOUT,
    ResponseCode.FLUSH_SLAVE_TIMEOUT: Code.SLAVE_PERSISTENCE_TIMEOUT,
}


class Refusal(Exception):  # noqa: N818 - an answer, not a failure
    """A call that is refused with a code of the protocol.

    Args:
        code: The code.
        text: The reason, and what to do about it.
        delay: Seconds by which the answer is delayed, so that guessing a secret is slow.
    """

    def __init__(self, code: Code, text: str, *, delay: float = 0.0) -> None:
        super().__init__(text)
        self.code = code
        self.text = text
        self.delay = delay


def status(code: Code, text: str = "") -> Any:
    """Return the status of an answer; without a text, it has the name of the code."""
    return Status(code=code, message=(text or code.name)[:_TEXT_LENGTH_MAX])


OK: Final = status(Code.OK)


def common_status(codes: set[int]) -> Any:
    """Return the status of an answer with several entries."""
    if len(codes) > 1:
        return status(Code.MULTIPLE_RESULTS)
    return status(Code(next(iter(codes)))) if codes else OK


def refusal_of(error: Exception, what: str) -> Refusal:
    """Return the refusal that an error becomes; an unexpected one is logged in full.

    Args:
        error: The error.
        what: The call, for the log.
    """
    if isinstance(error, Refusal):
        return error
    if isinstance(error, RouteNotFound):
        return Refusal(Code.TOPIC_NOT_FOUND, str(error))
    if isinstance(error, Fault):
        code = _BY_RESPONSE.get(error.code, Code.INTERNAL_SERVER_ERROR)
        return Refusal(code, error.remark or str(error))
    if isinstance(error, RequestTimeout):
        return Refusal(Code.PROXY_TIMEOUT, str(error))
    if isinstance(error, RemoteProtocolError):
        return Refusal(Code.BAD_REQUEST, str(error))
    if isinstance(error, RocketpostError):
        logger.warning("call failed: method=%s reason=%s", what, error)
        return Refusal(Code.INTERNAL_SERVER_ERROR, str(error))
    logger.error("call failed: method=%s", what, exc_info=error)
    return Refusal(Code.INTERNAL_SERVER_ERROR, f"{type(error).__name__} in the server; see its log")
