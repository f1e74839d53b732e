"""Errors as users of Spark meet them.

Spark shows the whole way of an error through Python, and beneath forty lines about loops and
threads nobody finds the sentence that matters. What we raise on purpose says what was wrong and
what to do; the way to it goes to the log, for those who want it.
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


def plainly(called: Callable[P, T]) -> Callable[P, T]:
    """Let errors of ours leave what Spark calls on the driver without the way that they came."""

    @functools.wraps(called)
    def calling(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return called(*args, **kwargs)
        except RocketpostError as error:
            logger.debug("a call of Spark failed: name=%s", called.__name__, exc_info=True)
            raise error.with_traceback(None) from None

    return calling
