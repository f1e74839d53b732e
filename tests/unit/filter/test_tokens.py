"""Words of expressions."""

from __future__ import annotations

import pytest

from rocketpost.errors import FilterError
from rocketpost.filter.tokens import LENGTH_MAX, TokenKind, tokenize


def words(text: str, *, paths: bool = False) -> list[tuple[str, str]]:
    return [(each.kind.name, each.text) for each in tokenize(text, paths=paths)][:-1]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("NoT nothing", [("KEYWORD", "NOT"), ("NAME", "nothing")]),
        ("$a_1", [("NAME", "$a_1")]),
        ("5 0 10L 0l", [("INTEGER", "5"), ("INTEGER", "0"), ("INTEGER", "10L"), ("INTEGER", "0l")]),
        ("5. .5 5e1 05.5", [("DECIMAL", each) for each in ("5.", ".5", "5e1", "05.5")]),
        ("5.E", [("DECIMAL", "5."), ("NAME", "E")]),
        ("12abc", [("INTEGER", "12"), ("NAME", "abc")]),
        ("'it''s'''", [("TEXT", "it's'")]),
        ("''", [("TEXT", "")]),
        ("<>=<=>>=", [("OPERATOR", each) for each in ("<>", "=", "<=", ">", ">=")]),
        ("a--b\nc", [("NAME", "a"), ("NAME", "c")]),
        ("a--b\rc", [("NAME", "a"), ("NAME", "c")]),
        ("a--b", [("NAME", "a"), ("OPERATOR", "-"), ("OPERATOR", "-"), ("NAME", "b")]),
        ("a/***/b/* * /*/", [("NAME", "a"), ("NAME", "b")]),
    ],
)
def test_words(text: str, expected: list[tuple[str, str]]) -> None:
    assert words(text) == expected


def test_words_of_paths_are_known_where_they_are_allowed() -> None:
    assert [text for _, text in words("body.a[0]", paths=True)] == ["body", ".", "a", "[", "0", "]"]
    with pytest.raises(FilterError, match="at character 5"):
        words("body.a")


@pytest.mark.parametrize(
    ("text", "hint"),
    [("a & b", "AND"), ("a | b", "OR"), ("a % 2", "arithmetic"), ("a;", "semicolon")],
)
def test_operators_of_other_languages_get_a_hint(text: str, hint: str) -> None:
    with pytest.raises(FilterError, match=hint):
        words(text)


def test_the_end_has_a_place_and_long_words_are_shown_short() -> None:
    *_, end = tokenize("ab ", paths=False)
    assert (end.kind, end.position, str(end)) == (TokenKind.END, 4, "the end of the expression")
    [long, _] = tokenize("'" + "x" * 100 + "'", paths=False)
    assert len(str(long)) < 60


def test_a_text_may_be_long_but_not_too_long() -> None:
    assert words("a" * LENGTH_MAX) == [("NAME", "a" * LENGTH_MAX)]
    with pytest.raises(FilterError, match="characters"):
        words("a" * (LENGTH_MAX + 1))
