from __future__ import annotations

from rocketpost.store.log.walk import walk

from ..conftest import Opener, draft


def test_damaged_and_missing_parts_are_passed_over(opener: Opener) -> None:
    store = opener()
    appended = [store.append(draft(bytes(400))) for _ in range(100)]
    store.confirm(store.commit())
    end = store.end_position
    store.close_blocking()
    victim = appended[5]
    path = opener.root / "commitlog" / ("0" * 20)
    data = bytearray(path.read_bytes())
    data[victim.position : victim.position + 8] = bytes(8)
    path.write_bytes(data)
    (opener.root / "commitlog" / f"{16384:020d}").unlink()
    store = opener(accept_missing=True)
    found = [position for position, _ in walk(store.segments, 0, end)]
    gone = range(16384, 32768)
    assert found == [
        each.position for each in appended if each is not victim and each.position not in gone
    ]
    assert [position for position, _ in walk(store.segments, 0, victim.end)] == [
        each.position for each in appended[:5]
    ]
