"""Pages of tables: every entry is on one page, in the order of names."""

from __future__ import annotations

import msgspec
import pytest

from rocketpost.model.topic import DataVersion
from rocketpost.server.handlers.pages import PAGE_COUNT, PageRequest, page_of

VERSION = DataVersion(3, 0, 5)
TABLE = {f"t{number:05d}": number for number in range(4500)}


def known(version: DataVersion = VERSION) -> str:
    return msgspec.json.encode(version).decode()


def test_without_fields_the_whole_table_is_one_page() -> None:
    assert page_of(TABLE, VERSION, PageRequest(None, None, None)) is TABLE


@pytest.mark.parametrize("count_max", [None, 1, 700, 2000, 2**31 - 1])
def test_pages_have_every_entry_once(count_max: int | None) -> None:
    found: list[str] = []
    small = {name: TABLE[name] for name in list(TABLE)[:9]} if count_max == 1 else TABLE
    version = ""
    while len(found) < len(small):
        page = page_of(small, VERSION, PageRequest(len(found), count_max, version))
        assert 0 < len(page) <= PAGE_COUNT + 1
        found += page
        version = known()
    assert found == sorted(small)


@pytest.mark.parametrize("version", ["", None, known(DataVersion(4, 0, 6)), "{", "7"])
def test_a_page_of_another_version_is_the_first(version: str | None) -> None:
    page = page_of(TABLE, VERSION, PageRequest(2000, 2000, version))
    assert next(iter(page)) == "t00000"


def test_no_page_leaves_a_single_entry() -> None:
    table = dict.fromkeys(map(str, range(2001)), 0)
    assert len(page_of(table, VERSION, PageRequest(0, 2000, ""))) == 2001
    assert not page_of(table, VERSION, PageRequest(2001, 2000, known()))
