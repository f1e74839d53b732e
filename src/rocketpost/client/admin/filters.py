"""Filters that brokers keep by name."""

from __future__ import annotations

from collections.abc import Mapping

from rocketpost.client.session import Session
from rocketpost.codec.bodies.named_filter import (
    FilterTest,
    FilterVerdict,
    NamedFilter,
    NamedFilterTable,
    decode_named_filters,
    decode_verdict,
)
from rocketpost.codec.codes import RequestCode
from rocketpost.codec.headers.filter import NamedFilterRequest
from rocketpost.codec.lenient_json import encode


class FilterAdmin:
    """Keeps, lists, deletes and tries filters. Rocketpost's brokers have them, Apache's do not."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def put(self, address: str, name: str, expression: str) -> None:
        """Keep a filter at a broker, in place of an earlier one of its name.

        Raises:
            Fault: The broker refuses; the expression may be wrong.
        """
        body = encode(NamedFilter(name=name, expression=expression))
        await self._session.call(address, RequestCode.PUT_NAMED_FILTER, body=body)

    async def all(self, address: str) -> NamedFilterTable:
        """Return the filters that a broker keeps.

        Raises:
            Fault: The broker refuses.
        """
        response = await self._session.call(address, RequestCode.GET_NAMED_FILTERS)
        return decode_named_filters(response.body)

    async def delete(self, address: str, name: str) -> None:
        """Have a broker give a filter up.

        Raises:
            Fault: The broker refuses; a group may use the filter.
        """
        header = NamedFilterRequest(name=name)
        await self._session.call(address, RequestCode.DELETE_NAMED_FILTER, header)

    async def test(
        self,
        address: str,
        expression: str,
        *,
        properties: Mapping[str, str],
        body: str | None = None,
    ) -> FilterVerdict:
        """Return what a broker makes of a message.

        Raises:
            Fault: The broker refuses; the expression may be wrong.
        """
        asked = FilterTest(expression=expression, properties=dict(properties), body=body)
        response = await self._session.call(address, RequestCode.TEST_FILTER, body=encode(asked))
        return decode_verdict(response.body)
