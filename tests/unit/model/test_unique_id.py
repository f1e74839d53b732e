from __future__ import annotations

from datetime import datetime

import pytest

from rocketpost.model.unique_id import UniqueIds, month_bounds_ms


def ms(*when: int) -> int:
    return int(datetime(*when).timestamp() * 1000)  # type: ignore[arg-type, misc]


def test_a_month_is_the_local_one() -> None:
    began, ends = month_bounds_ms(ms(2024, 2, 29, 23, 59))
    assert (began, ends) == (ms(2024, 2, 1), ms(2024, 3, 1))
    assert month_bounds_ms(ms(2030, 12, 31, 23))[1] == ms(2031, 1, 1)


@pytest.mark.parametrize(("ip", "digits"), [("10.0.0.3", "0A000003"), ("::1", "0" * 31 + "1")])
def test_an_id_is_laid_out_as_javas(ip: str, digits: str) -> None:
    ids = UniqueIds(ip=ip, pid=0x12345, chance=b"\x01\x02\x03\xff", counter=0xFFFE)
    assert ids.next(ms(2124, 5, 1, 0, 0, 1)) == f"{digits}2345010203FF000003E8FFFF"
    assert ids.next(ms(2124, 6, 1, 0, 0, 2)) == f"{digits}2345010203FF000007D00000"
