from __future__ import annotations

from pathlib import Path

from rocketpost.testing.journal import ConsumerJournal, Entry, HandlerEntry, ShareEntry, join_names


def test_lines_of_several_writers_keep_their_order(tmp_path: Path) -> None:
    first, second = ConsumerJournal(tmp_path / "journal"), ConsumerJournal(tmp_path / "journal")
    first.write("begin", "a", "t/b/0", 7, 4711, "-")
    second.write("killed", "a")
    assert list(second.read()) == [
        Entry("begin", "a", ("t/b/0", "7", "4711", "-")),
        Entry("killed", "a"),
    ]
    first.write("share", "b", "t", join_names([]), join_names(["b", "c"]))
    [entry] = second.read()
    assert ShareEntry.of(entry) == ShareEntry("t", frozenset(), frozenset({"b", "c"}))
    assert list(second.read()) == []
    first.close()
    second.close()


def test_a_line_that_is_not_whole_is_left_for_later(tmp_path: Path) -> None:
    journal = ConsumerJournal(tmp_path / "journal")
    with journal.path.open("ab") as file:
        file.write(b"done a t/b/0 1 2 k")
        file.flush()
        assert list(journal.read()) == []
        file.write(b"ey\n")
    [entry] = journal.read()
    assert HandlerEntry.of(entry) == HandlerEntry("t/b/0", 1, 2, "key")
    journal.close()
