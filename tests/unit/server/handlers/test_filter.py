"""Requests about named filters."""

from __future__ import annotations

import msgspec
import pytest

from rocketpost.broker.filter.filters import Filters
from rocketpost.broker.filter.named import NamedFilters
from rocketpost.client.compression import decompress
from rocketpost.codec.codes import RequestCode as Code
from rocketpost.codec.codes import ResponseCode
from rocketpost.server.handlers.filter import FilterHandlers

from .fakes import Caller, Saves
from .world import World


class Kept:
    """The handlers with what they work on."""

    def __init__(self, world: World) -> None:
        self.saves = Saves()
        self.named = NamedFilters(clock=world.clock)
        self.named.enabled = True
        filters = Filters(table=world.filters.table, unpack=decompress, resolve=self.named.text)
        self.named.on_change = filters.forget
        self.call = Caller(FilterHandlers(filters=filters, named=self.named, save=self.saves))

    async def put(self, name: str, expression: str) -> tuple[int, str]:
        body = msgspec.json.encode({"name": name, "expression": expression})
        response = await self.call(Code.PUT_NAMED_FILTER, body=body)
        return response.code, response.remark or ""

    async def verdict(self, expression: str, **members: object) -> str:
        body = msgspec.json.encode({"expression": expression, **members})
        response = await self.call(Code.TEST_FILTER, body=body)
        assert response.code == 0, response.remark
        return str(msgspec.json.decode(response.body)["verdict"])


@pytest.fixture
def kept(world: World) -> Kept:
    return Kept(world)


async def test_a_filter_is_acknowledged_when_it_is_on_disk(kept: Kept) -> None:
    assert await kept.put("big", "body.total > 100") == (0, "")
    assert kept.saves.count == 1
    listed = msgspec.json.decode((await kept.call(Code.GET_NAMED_FILTERS)).body)
    assert listed["filters"]["big"]["expression"] == "body.total > 100"
    assert (await kept.call(Code.DELETE_NAMED_FILTER, {"name": "big"})).code == 0
    assert kept.saves.count == 2


async def test_a_wrong_expression_changes_nothing(kept: Kept) -> None:
    code, remark = await kept.put("big", "body.total >")
    assert code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    assert "at character 13" in remark
    assert kept.saves.count == len(kept.named) == 0
    assert (await kept.call(Code.PUT_NAMED_FILTER, body=b"[]")).code != 0


async def test_an_expression_can_be_tried(kept: Kept) -> None:
    await kept.put("big", "body.total > 100")
    text = "MATCHES('big') AND region = 'eu'"
    eu = {"region": "eu"}
    assert await kept.verdict(text, properties=eu, body='{"total": 120}') == "TRUE"
    assert await kept.verdict(text, properties=eu, body='{"total": 20}') == "FALSE"
    assert await kept.verdict(text, properties=eu, body="no json") == "UNKNOWN"
    assert await kept.verdict(text, properties=eu) == "UNKNOWN"
    assert await kept.verdict("size > 5", properties={"size": "x"}) == "ERROR"
    huge = '{"total": 120, "x": "' + " " * 1024 * 1024 + '"}'
    assert await kept.verdict(text, properties=eu, body=huge) == "UNKNOWN"
