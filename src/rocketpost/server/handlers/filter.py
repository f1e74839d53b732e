"""Requests about the filters that a broker stores, and tests of expressions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from rocketpost.broker.filter.filters import Filters
from rocketpost.broker.filter.matching import BODY_BYTES_MAX
from rocketpost.broker.filter.named import NamedFilters
from rocketpost.codec.bodies.named_filter import (
    FilterVerdict,
    decode_filter_test,
    decode_named_filter,
)
from rocketpost.codec.codes import RequestCode
from rocketpost.codec.command import Command
from rocketpost.codec.headers.filter import NamedFilterRequest
from rocketpost.model.group import SQL92
from rocketpost.server.handlers.replies import json_reply, read_body
from rocketpost.server.routes.access import GET, UPDATE, of_cluster, strict
from rocketpost.server.routes.route import NO_HEADER, Reply, Route, plain, waiting
from rocketpost.transport.connection import Connection

_WORDS = {True: "TRUE", False: "FALSE", None: "UNKNOWN"}


class FilterHandlers:
    """Serves requests about named filters. Owned by the loop.

    Args:
        save: Returns once the filters are on disk; no change is acknowledged before.
    """

    def __init__(
        self,
        *,
        filters: Filters,
        named: NamedFilters,
        save: Callable[[], Awaitable[None]],
    ) -> None:
        self._filters = filters
        self._named = named
        self._save = save

    def routes(self) -> Sequence[Route]:
        """Return the routes of this family."""
        return [
            waiting(RequestCode.PUT_NAMED_FILTER, NO_HEADER, strict(of_cluster(UPDATE)), self.put),
            waiting(
                RequestCode.DELETE_NAMED_FILTER,
                NamedFilterRequest,
                strict(of_cluster(UPDATE)),
                self.delete,
            ),
            plain(RequestCode.GET_NAMED_FILTERS, NO_HEADER, strict(of_cluster(GET)), self.all),
            plain(RequestCode.TEST_FILTER, NO_HEADER, strict(of_cluster(GET)), self.test),
        ]

    async def put(self, connection: Connection, command: Command, header: None) -> Reply:
        """Store a named filter."""
        wanted = read_body(command, decode_named_filter)
        self._named.put(wanted.name, wanted.expression)
        await self._save()
        return Reply()

    async def delete(
        self, connection: Connection, command: Command, header: NamedFilterRequest
    ) -> Reply:
        """Delete a named filter."""
        self._named.delete(header.name)
        await self._save()
        return Reply()

    def all(self, connection: Connection, command: Command, header: None) -> Reply:
        """List the named filters."""
        return json_reply(self._named.body())

    def test(self, connection: Connection, command: Command, header: None) -> Reply:
        """Evaluate an expression for a message in the request."""
        asked = read_body(command, decode_filter_test)
        expression = self._filters.check(SQL92, asked.expression).expression
        body = None if asked.body is None else asked.body.encode()
        if body is not None and len(body) > BODY_BYTES_MAX:
            body = None
        try:
            word, reason = _WORDS[expression.evaluate(asked.properties, body)], None
        except (ValueError, ArithmeticError) as error:
            word, reason = "ERROR", str(error)
        return json_reply(FilterVerdict(verdict=word, reason=reason))
