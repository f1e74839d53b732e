"""Administration of named filters."""

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
    """Stores, lists, deletes and tests named filters. Apache's brokers do not have them."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def put(self, address: str, name: str, expression: str) -> None:
        """Store a filter on a broker, replacing one of the same name.

        Raises:
            Fault: The broker refuses; the expression may be wrong.
        """
        body = encode(NamedFilter(name=name, expression=expression))
        await self._session.call(address, RequestCode.PUT_NAMED_FILTER, body=body)

    async def all(self, address: str) -> NamedFilterTable:
        """Return the named filters of a broker.

        Raises:
            Fault: The broker refuses.
        """
        response = await self._session.call(address, RequestCode.GET_NAMED_FILTERS)
        return decode_named_filters(response.body)

    async def delete(self, address: str, name: str) -> None:
        """Delete a filter from a broker.

        Raises:
            Fault: The broker refuses; for example because a group uses the filter.
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
        """Test a filter on a message at a broker.

        Raises:
            Fault: The broker refuses; the expression may be wrong.
        """
        asked = FilterTest(expression=expression, properties=dict(properties), body=body)
        response = await self._session.call(address, RequestCode.TEST_FILTER, body=encode(asked))
        return decode_verdict(response.body)
