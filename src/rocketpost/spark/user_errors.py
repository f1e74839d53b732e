"""Errors without tracebacks for users of Spark.

Spark shows the whole Python traceback of an error, and nobody finds the one sentence that matters
below forty lines about loops and threads. The message of our own errors says what was wrong and
what to do. Their tracebacks go to the log.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from rocketpost.errors import RocketpostError

P = ParamSpec("P")
T = TypeVar("T")

logger = logging.getLogger(__name__)


def user_facing_errors(called: Callable[P, T]) -> Callable[P, T]:
    """Remove tracebacks from our own errors; decorates methods that Spark calls on the driver."""

    @functools.wraps(called)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return called(*args, **kwargs)
        except RocketpostError as error:
            logger.debug("a call of Spark failed: name=%s", called.__name__, exc_info=True)
            raise error.with_traceback(None) from None

    return call
