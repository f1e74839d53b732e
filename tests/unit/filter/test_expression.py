from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rocketpost.errors import FilterError
from rocketpost.filter import Expression, check_filter, compile_filter
from rocketpost.filter.parser import OPERANDS_MAX

from . import reference


def verdict(text: str, properties: dict[str, str] | None = None) -> bool | None:
    return compile_filter(text).evaluate(properties or {})


def judged(text: str, properties: dict[str, str]) -> str:
    try:
        expression = compile_filter(text)
    except FilterError:
        return reference.REFUSED
    try:
        found = expression.evaluate(properties)
    except ValueError:
        return reference.FAILED
    return {True: reference.TRUE, False: reference.FALSE, None: reference.UNKNOWN}[found]


@pytest.mark.parametrize(
    ("text", "properties", "expected"),
    [
        ("a > 5", {"a": "6"}, True),
        ("a > 5", {"a": "5"}, False),
        ("a > 5", {}, None),
        ("a >= -2147483648", {"a": "3000000000"}, True),
        ("5 < a", {"a": "6"}, True),
        ("a > 5.5", {"a": "NaN"}, True),
        ("a > b", {"a": "10", "b": "9"}, True),
        ("a = 5", {"a": "05"}, True),
        ("a = 5.0", {"a": " 5d "}, True),
        ("a = 'x'", {"a": "x"}, True),
        ("a = 'x'", {}, None),
        ("'x' = a", {}, False),
        ("a = b", {}, True),
        ("a <> 'x'", {"a": "y"}, True),
        ("a <> 'x'", {}, None),
        ("a = 'it''s'", {"a": "it's"}, True),
        ("a IS NULL", {}, True),
        ("a IS NOT NULL", {}, False),
        ("a is not null", {"a": "x"}, True),
        ("a = TRUE", {"a": "tRUE"}, True),
        ("a = FALSE", {"a": "anything"}, True),
        ("1 = TRUE", {}, False),
        ("a BETWEEN 1 AND 5", {"a": "5"}, True),
        ("a NOT BETWEEN 1 AND 5", {"a": "6"}, True),
        ("a NOT BETWEEN 5 AND 1", {"a": "3"}, True),
        ("a BETWEEN 1 AND 5", {}, None),
        ("a IN ('x', 'y')", {"a": "y"}, True),
        ("a NOT IN ('x', 'y')", {"a": "y"}, False),
        ("a NOT IN ('x')", {}, None),
        ("a CONTAINS 'b'", {"a": "abc"}, True),
        ("a NOT CONTAINS 'b'", {"a": "xyz"}, True),
        ("a NOT CONTAINS 'b'", {}, False),
        ("a CONTAINS ''", {"a": "x"}, False),
        ("a NOT CONTAINS ''", {"a": "x"}, False),
        ("a STARTSWITH 'ab'", {"a": "abc"}, True),
        ("a ENDSWITH 'bc'", {"a": "abc"}, True),
        ("a NOT STARTSWITH 'ab'", {"a": "abc"}, False),
        ("a", {"a": "true"}, False),
        ("a", {}, None),
        ("NOT a", {"a": "true"}, True),
        ("NOT a = 1", {"a": "1"}, False),
        ("NOT (a = 1)", {"a": "2"}, True),
        ("NULL OR TRUE", {}, True),
        ("NULL AND FALSE", {}, False),
        ("NULL AND TRUE", {}, None),
        ("NULL OR FALSE", {}, None),
        ("NOT NULL", {}, None),
        ("TRUE OR a > 5", {"a": "no number"}, True),
        ("FALSE AND a > 5", {"a": "no number"}, False),
        ("-a = 5", {"a": "5"}, None),
        ("- -5 = 5", {}, True),
        ("+a = 5", {"a": "5"}, True),
        ("a = 0L", {"a": "0"}, True),
        ("a=1/* one */OR--two\nb=2", {"b": "2"}, True),
        ("a = 1 OR b = 2 AND c = 3", {"a": "1", "b": "0", "c": "0"}, True),
        ("(a = 1 OR b = 2) AND c = 3", {"a": "1", "b": "0", "c": "0"}, False),
        ("matches = 5", {"matches": "5"}, True),
    ],
)
def test_verdicts(text: str, properties: dict[str, str], expected: bool | None) -> None:
    assert verdict(text, properties) is expected
    assert compile_filter(text).matches(properties) is (expected is True)


@pytest.mark.parametrize(
    ("text", "properties"),
    [
        ("a > 5", {"a": "5.5"}),
        ("a = 5", {"a": "five"}),
        ("a = 5", {"a": "3000000000"}),
        ("a > b", {"a": "x", "b": "1"}),
        ("TRUE = a", {"a": "true"}),
        ("NOT (a > 5)", {"a": "x"}),
        ("a > 5 OR b = 1", {"a": "x", "b": "1"}),
        ("a = 3000000000", {"a": "9223372036854775808"}),
        ("a = 5", {"a": "9" * 5000}),
        ("a > 5", {"a": "𝟏"}),
    ],
)
def test_values_that_cannot_be_compared_do_not_match(text: str, properties: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"is not |cannot be compared"):
        verdict(text, properties)
    assert not compile_filter(text).matches(properties)


@pytest.mark.parametrize(
    ("text", "position", "reason"),
    [
        ("", None, "empty"),
        ("  ", None, "empty"),
        ("a >", 4, "a value or ( after '>'"),
        ("a > 5 b", 7, "complete before 'b'"),
        ("a LIKE 'x%'", 3, "CONTAINS"),
        ("a == 1", 4, "one = is enough"),
        ("a != 1", 3, "<>"),
        ('a = "x"', 5, "single quotes"),
        ("a + 1 > 2", 3, "no arithmetic"),
        ("a = 007", 5, "does not start with 0"),
        ("a = 'x", 5, "not closed"),
        ("a = 1 -- comment", 7, "line end"),
        ("(a = 1", 7, ") is expected"),
        ("a IS 5", 6, "NULL is expected"),
        ("a BETWEEN 1 OR 2", 13, "AND is expected"),
        ("a IN ()", 7, "string in single quotes"),
        ("a IN (1)", 7, "string in single quotes"),
        ("a IN ('x' 'y')", 11, ") is expected"),
        ("'x' IN ('x')", 1, "property"),
        ("a CONTAINS 5", 12, "string in single quotes"),
        ("5", 1, "condition is expected"),
        ("-a", 1, "condition is expected"),
        ("a = 1 AND 'x'", 11, "condition is expected"),
        ("NOT 5", 5, "condition is expected"),
        ("a = NULL", 5, "IS NULL"),
        ("NULL <> a", 1, "IS NULL"),
        ("TRUE = 5", 8, "TRUE and FALSE"),
        ("a > 'x'", 5, "this is a string"),
        ("a > TRUE", 5, "this is a condition"),
        ("(a = 1) > 5", 2, "this is a condition"),
        ("a BETWEEN NULL AND 5", 11, "this is a condition"),
        ("a BETWEEN 5 AND 1", 11, "5 is above 1"),
        ("a = 9223372036854775808", 5, "64 bits"),
        ("a = 0.0", 5, "zero"),
        ("a = 1e999", 5, "too large"),
        ("MATCHES('x')", 1, "cannot be used here"),
        ("body.x = 1", 5, "does not belong"),
        ("größe = 1", 3, "does not belong"),
    ],
)
def test_a_wrong_expression_is_refused_with_place_and_reason(
    text: str, position: int | None, reason: str
) -> None:
    with pytest.raises(FilterError) as refused:
        compile_filter(text)
    assert refused.value.position == position
    assert reason in refused.value.reason


@pytest.mark.parametrize(
    "text",
    [
        "(" * 16_000,
        "-" * 16_000,
        "NOT " * 4_000 + "a",
        "a = " * 4_000 + "a",
        "a IS NULL " * 1_600,
        "a=1 OR " * 2_300 + "a=1",
        "a OR " * 3_200 + "a",
        "NOT TRUE OR " * 1_300 + "a",
        "a IN (" + "'x'," * 4_000 + "'x')",
        "0" * 16_000,
        "'a''" * 4_000,
        "/*" + "*" * 16_000,
        "a = '" + "x" * 17_000 + "'",
    ],
    ids=lambda text: text[:8],
)
def test_a_hostile_expression_is_refused(text: str) -> None:
    with pytest.raises(FilterError):
        compile_filter(text)


def test_a_refusal_shows_little_of_a_long_word() -> None:
    with pytest.raises(FilterError) as refused:
        compile_filter("a = 1 " + "b" * 9_000)
    assert len(str(refused.value)) < 100


def test_nesting_within_the_bound_is_read_and_judged() -> None:
    assert verdict("(" * 60 + "a = 1" + ")" * 60, {"a": "1"}) is True
    assert verdict("NOT " * 60 + "TRUE") is True


def test_an_expression_knows_what_it_reads() -> None:
    expression = compile_filter("b > 1 AND a = 'x' OR b CONTAINS 'y'")
    assert expression.names == ("b", "a")
    assert expression.marks == (b"\x02b\x01", b"\x02a\x01")
    assert expression.operand_count == 5
    assert compile_filter("NOT (a = 1 AND b = 2) OR (c = 3) = TRUE").operand_count == 7
    assert compile_filter("a BETWEEN 1 AND 5").operand_count == 4
    assert not expression.reads_body
    assert repr(expression) == "Expression(\"b > 1 AND a = 'x' OR b CONTAINS 'y'\")"


def test_a_check_knows_no_names_but_takes_them() -> None:
    check_filter("MATCHES('orders') AND a = 1")
    with pytest.raises(FilterError):
        check_filter("a >")


# Bodies and named filters.

ORDER = b'{"order": {"total": 120, "vip": true, "items": [{"sku": "x-1"}], "note": null}}'


def in_body(text: str) -> Expression:
    return compile_filter(text, paths=True)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("body.order.total > 100", True),
        ("body.order.total > 100.5", True),
        ("body.order.total = '120'", True),
        ("100 < body.order.total", True),
        ("-body.order.total < 0", True),
        ("body.order.vip", True),
        ("body.order.vip = TRUE", True),
        ("body.order.vip > 1", None),
        ("body.order.items[0].sku STARTSWITH 'x'", True),
        ("body['order'].items[0].sku IN ('x-1')", True),
        ("body.order.items[7].sku = 'x-1'", None),
        ("body.order.note IS NULL", True),
        ("body.order.items IS NULL", True),
        ("body.order.missing.deep > 1", None),
        ("body.order.total > 100 AND region = 'eu'", True),
        ("region = 'eu' AND body.order.total > 500", False),
        ("body = 'x'", None),
    ],
)
def test_paths_into_a_body(text: str, expected: bool | None) -> None:
    assert in_body(text).evaluate({"region": "eu"}, ORDER) is expected


@pytest.mark.parametrize("body", [b"", b"no json", b"\xff\xfe", b"[" * 100_000, b"17", None])
def test_a_body_that_is_no_object_is_unknown(body: bytes | None) -> None:
    assert in_body("body.a = 1").evaluate({}, body) is None
    assert not in_body("body.a = 1").matches({}, body)
    assert in_body("body.a = 1 OR region = 'eu'").matches({"region": "eu"}, body)


def test_keywords_are_members_as_written() -> None:
    assert in_body("body.In = 1").evaluate({}, b'{"In": 1}') is True


@pytest.mark.parametrize(
    "text", ["body.", "body[", "body[x] = 1", "body.5 = 1", "body" + ".a" * 17]
)
def test_a_wrong_path_is_refused(text: str) -> None:
    with pytest.raises(FilterError):
        in_body(text)


def test_a_named_filter_stands_for_its_text() -> None:
    kept = {"big": "body.order.total > 100"}

    def resolve(name: str) -> str:
        if name not in kept:
            raise FilterError(f"there is no filter {name!r}")
        return kept[name]

    expression = compile_filter("matches('big') AND region = 'eu'", resolve=resolve)
    assert expression.reads_body
    assert expression.matches({"region": "eu"}, ORDER)
    assert not expression.matches({"region": "us"}, ORDER)
    with pytest.raises(FilterError, match="there is no filter 'other'"):
        compile_filter("MATCHES('other')", resolve=resolve)


def test_a_named_filter_names_no_other() -> None:
    with pytest.raises(FilterError, match="cannot be used here"):
        compile_filter("MATCHES('a')", resolve=lambda name: "MATCHES('b')")


def test_named_filters_do_not_get_round_the_bound() -> None:
    big = " OR ".join(["a"] * (OPERANDS_MAX - 1))
    with pytest.raises(FilterError, match="properties and values"):
        compile_filter("MATCHES('x') OR MATCHES('x')", resolve=lambda name: big)


# Against a second implementation.


@settings(max_examples=300)
@given(seed=st.integers(min_value=0, max_value=2**32))
def test_a_second_implementation_agrees(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(5):
        tree = reference.some_tree(chance, 3)
        text = reference.render(tree, chance)
        properties = reference.some_properties(chance)
        assert judged(text, properties) == reference.judge(tree, properties), (text, properties)


def test_random_expressions_reach_every_outcome() -> None:
    chance = random.Random(7)
    trees = [reference.some_tree(chance, 3) for _ in range(400)]
    outcomes = {reference.judge(tree, reference.some_properties(chance)) for tree in trees}
    assert outcomes == set("TFUXE")
