"""A second, slow meaning of filter expressions, and random ones with the values they read.

Written from the description of RocketMQ's filters, not from ``rocketpost.filter``: values carry
their Java type, nothing is precomputed. Trees are tuples; ``render`` writes one as text.
"""

from __future__ import annotations

import random
from typing import Any, Final

Tree = tuple[Any, ...]

TRUE, FALSE, UNKNOWN, FAILED, REFUSED = "T", "F", "U", "X", "E"

NAMES: Final = ("a", "b", "_c", "$d", "Price", "missing")
TEXTS: Final = (
    *("1", "5", "05", "+5", "-5", "5.0", "5.5", " 5 ", "5d", "5F", "abc", "b", "it's", "x y"),
    *("true", "TRUE", "tRue", "false", "NaN", "Infinity", "-Infinity", "-0.0", "0.0", "0", "1e3"),
    *("3000000000", "9223372036854775807", "9223372036854775808", "-9223372036854775808"),
    *("2147483647", "2147483648", "-2147483648", "-2147483649", "0x1p3", "0X.8P1", "1_000", "+"),
    *("٣", "５", "𝟏", "1e", ".5", "5.", ".", "1e400", "-1e400", "4.9e-324", "null", "größe"),
)
INTEGERS: Final = (0, 1, 5, 7, 1000, 2**31 - 1, 2**31, 3_000_000_000, 2**63 - 1, 2**63)
DECIMALS: Final = ("5.5", "5.", ".5", "1e3", "5E0", "1.5e+1", "2e-3", "0.0", "1e999", "1e-999")
RELATIONS: Final = (">", ">=", "<", "<=")
SEARCHES: Final = ("CONTAINS", "STARTSWITH", "ENDSWITH")


class IllegalError(Exception):
    """The expression is refused when it is read."""


class BoomError(Exception):
    """The evaluation ends without a verdict."""


# Making.


def some_tree(chance: random.Random, depth: int) -> Tree:
    """Return a random tree; most are legal."""
    if depth <= 0 or chance.random() < 0.12:
        return _leaf(chance)
    kind = chance.choice(["and", "or", "not", *["compare"] * 6, "odd"])
    if kind in ("and", "or"):
        return (kind, some_tree(chance, depth - 1), some_tree(chance, depth - 1))
    if kind == "not":
        return ("not", some_tree(chance, depth - 1))
    if kind == "odd":
        return _comparison(chance, some_tree(chance, depth - 1), some_tree(chance, depth - 2))
    left, right = ("property", chance.choice(NAMES)), _operand(chance)
    if chance.random() < 0.2:
        left, right = right, left
    return _comparison(chance, left, right)


def some_properties(chance: random.Random) -> dict[str, str]:
    """Return properties that trees read."""
    return {name: chance.choice(TEXTS) for name in NAMES[:-1] if chance.random() < 0.8}


def _comparison(chance: random.Random, left: Tree, right: Tree) -> Tree:
    match chance.randrange(8):
        case 0 | 1:
            return ("equal", left, right)
        case 2:
            return ("unequal", left, right)
        case 3:
            return (chance.choice(["null", "present"]), left)
        case 4 | 5:
            return ("order", chance.choice(RELATIONS), left, right)
        case 6:
            texts = tuple(chance.choice(TEXTS) for _ in range(chance.randint(1, 6)))
            return ("in", chance.random() < 0.4, left, texts)
    if chance.random() < 0.5:
        search = chance.choice([*TEXTS, "5", "b", "", "e"])
        return ("search", chance.choice(SEARCHES), chance.random() < 0.4, left, search)
    return ("between", chance.random() < 0.4, left, right, _operand(chance))


def _operand(chance: random.Random) -> Tree:
    leaf = _leaf(chance)
    while leaf[0] in ("integer", "decimal", "property") and chance.random() < 0.15:
        leaf = (chance.choice(["minus", "plus"]), leaf)
    return leaf


def _leaf(chance: random.Random) -> Tree:
    match chance.randrange(8):
        case 0 | 1 | 2:
            return ("integer", chance.choice(INTEGERS[: chance.choice([5, 10])]))
        case 3:
            return ("decimal", chance.choice(DECIMALS[: chance.choice([7, 10])]))
        case 4:
            return ("text", chance.choice(TEXTS))
        case 5 | 6:
            return ("property", chance.choice(NAMES))
    return ("known", chance.choice([True, False, None]))


# Writing.

_LEVELS: Final = {"or": 1, "and": 2, "equal": 3, "unequal": 3, "null": 3, "present": 3}
_LEVELS_COMPARE: Final = ("order", "search", "in", "between")
_LEVELS_UNARY: Final = ("not", "minus", "plus")


def _level(tree: Tree) -> int:
    if tree[0] in _LEVELS_COMPARE:
        return 4
    return 5 if tree[0] in _LEVELS_UNARY else _LEVELS.get(tree[0], 6)


def render(tree: Tree, chance: random.Random) -> str:
    """Write a tree in one of the ways that mean it."""
    return "".join(_render(tree, 1, chance))


def _render(tree: Tree, least: int, chance: random.Random) -> list[str]:
    if _level(tree) < least or chance.random() < 0.05:
        return ["(", *_render(tree, 1, chance), ")", _gap(chance, "")]
    word, quoted = (lambda text: _case(text, chance)), _quote
    gap = lambda: _gap(chance, " ")  # noqa: E731
    match tree:
        case ("or" | "and" as kind, left, right):
            level = _LEVELS[kind]
            ours, theirs = _render(left, level, chance), _render(right, level + 1, chance)
            return [*ours, gap(), word(kind), gap(), *theirs]
        case ("equal" | "unequal" as kind, left, right):
            sign = "=" if kind == "equal" else "<>"
            return [*_render(left, 3, chance), gap(), sign, gap(), *_render(right, 4, chance)]
        case ("null" | "present" as kind, inner):
            words = [word("is"), gap(), *([word("not"), gap()] if kind == "present" else [])]
            return [*_render(inner, 3, chance), gap(), *words, word("null")]
        case ("order", relation, left, right):
            ours, theirs = _render(left, 4, chance), _render(right, 5, chance)
            return [*ours, gap(), relation, gap(), *theirs]
        case ("search", relation, negated, inner, text):
            no = [word("not"), gap()] if negated else []
            return [*_render(inner, 4, chance), gap(), *no, word(relation), gap(), quoted(text)]
        case ("in", negated, inner, texts):
            no = [word("not"), gap()] if negated else []
            items = ", ".join(map(quoted, texts))
            return [*_render(inner, 4, chance), gap(), *no, word("in"), f" ({items})"]
        case ("between", negated, inner, low, high):
            no = [word("not"), gap()] if negated else []
            bounds = [*_render(low, 5, chance), gap(), word("and"), gap()]
            start = [*_render(inner, 4, chance), gap(), *no, word("between"), gap()]
            return [*start, *bounds, *_render(high, 5, chance)]
        case ("not", inner):
            return [word("not"), gap(), *_render(inner, 5, chance)]
        case ("minus" | "plus" as kind, inner):
            return ["-" if kind == "minus" else "+", " ", *_render(inner, 5, chance)]
        case ("integer", number):
            return [str(number), chance.choice(["", "", "L", "l"]) if number else ""]
        case ("decimal", text):
            return [text]
        case ("text", text):
            return [quoted(text)]
        case ("known", value):
            return [word("null" if value is None else str(value))]
        case ("property", name):
            return [name]
    raise AssertionError(tree)


def _gap(chance: random.Random, least: str) -> str:
    return least + chance.choice(["", "", "", " ", "\n", "\t", "/* ** x */", " -- y\n"])


def _case(text: str, chance: random.Random) -> str:
    return chance.choice([text.lower(), text.upper(), text.capitalize()])


def _quote(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


# Meaning. A value is None or (type, value), the type one of I L D S B.


def judge(tree: Tree, properties: dict[str, str]) -> str:
    """Return TRUE, FALSE, UNKNOWN, FAILED, or REFUSED for an illegal tree."""
    try:
        _check(tree)
        _check_truth(tree)
    except IllegalError:
        return REFUSED
    try:
        value = _value(_cast(tree), properties)
    except BoomError:
        return FAILED
    if value is None:
        return UNKNOWN
    assert value[0] == "B"
    return TRUE if value[1] else FALSE


_TRUTHS: Final = frozenset(
    ("known", "or", "and", "not", "equal", "unequal", "null", "present")
) | set(_LEVELS_COMPARE)


def _strip(tree: Tree) -> Tree:
    return _strip(tree[1]) if tree[0] == "plus" else tree


def _is_constant(tree: Tree) -> bool:
    return _strip(tree)[0] in ("integer", "decimal", "text", "known")


def _check_truth(tree: Tree) -> None:
    if _strip(tree)[0] not in _TRUTHS | {"property"}:
        raise IllegalError


def _cast(tree: Tree) -> Tree:
    return ("cast", tree) if _strip(tree)[0] == "property" else tree


def _check_order(tree: Tree) -> None:
    bare = _strip(tree)
    if bare[0] == "text" or bare[0] in _TRUTHS:
        raise IllegalError


def _check(tree: Tree) -> None:
    for part in tree[1:]:
        if isinstance(part, tuple) and part and isinstance(part[0], str) and tree[0] != "in":
            _check(part)
    match tree:
        case ("in", _, inner, _):
            _check(inner)
            if _strip(inner)[0] != "property":
                raise IllegalError
        case ("integer", number):
            if number >= 2**63:
                raise IllegalError
        case ("decimal", text):
            if not 0 < float(text) < float("inf"):
                raise IllegalError
        case ("and" | "or", left, right):
            _check_truth(left)
            _check_truth(right)
        case ("not", inner):
            _check_truth(inner)
        case ("equal" | "unequal", left, right):
            if ("known", None) in (_strip(left), _strip(right)):
                raise IllegalError
            is_known = _strip(left)[0] == "known"
            if is_known and _is_constant(right) and _strip(right)[0] != "known":
                raise IllegalError
        case ("order", _, left, right):
            _check_order(left)
            _check_order(right)
        case ("between", negated, inner, low, high):
            for each in (inner, low, high):
                _check_order(each)
            fixed = not negated and _is_constant(low) and _is_constant(high)
            if fixed and _compare(_value(low, {}), _value(high, {})) > 0:
                raise IllegalError


def _value(tree: Tree, properties: dict[str, str]) -> Any:
    match tree:
        case ("property", name):
            return ("S", properties[name]) if name in properties else None
        case ("integer", number):
            return ("I" if number < 2**31 else "L", number)
        case ("decimal", text):
            return ("D", float(text))
        case ("text", text):
            return ("S", text)
        case ("known", value):
            return None if value is None else ("B", value)
        case ("plus", inner):
            return _value(inner, properties)
        case ("minus", inner):
            value = _value(inner, properties)
            if value is None or value[0] not in "ILD":
                return None
            return (value[0], -value[1])
        case ("cast", inner):
            value = _value(inner, properties)
            return None if value is None else ("B", value[0] == "B" and value[1])
        case ("not", inner):
            return _invert(_value(_cast(inner), properties))
        case ("and", left, right):
            ours = _value(_cast(left), properties)
            if ours == ("B", False):
                return ours
            theirs = _value(_cast(right), properties)
            if theirs == ("B", False):
                return theirs
            return None if ours is None or theirs is None else ("B", True)
        case ("or", left, right):
            return _invert(_value(("and", ("not", left), ("not", right)), properties))
        case ("equal", left, right):
            return _equals(_value(left, properties), _value(right, properties))
        case ("unequal", left, right):
            return _invert(_equals(_value(left, properties), _value(right, properties)))
        case ("null", inner):
            return ("B", _value(inner, properties) is None)
        case ("present", inner):
            return ("B", _value(inner, properties) is not None)
        case ("order", relation, left, right):
            return _ordered(relation, left, right, properties)
        case ("between", negated, inner, low, high):
            if negated:
                return _value(
                    ("or", ("order", "<", inner, low), ("order", ">", inner, high)), properties
                )
            return _value(
                ("and", ("order", ">=", inner, low), ("order", "<=", inner, high)), properties
            )
        case ("in", negated, inner, texts):
            value = _value(inner, properties)
            return None if value is None else ("B", (value[1] in texts) != negated)
        case ("search", relation, negated, inner, text):
            value = _value(inner, properties) if text else None
            if value is None or value[0] != "S":
                return ("B", False)
            found = {
                "CONTAINS": text in value[1],
                "STARTSWITH": value[1].startswith(text),
                "ENDSWITH": value[1].endswith(text),
            }[relation]
            return ("B", found != negated)
    raise AssertionError(tree)


def _invert(value: Any) -> Any:
    return None if value is None else ("B", not value[1])


def _equals(left: Any, right: Any) -> Any:
    if left is None:
        return ("B", True) if right is None else None
    if right is None:
        return ("B", False)
    return ("B", _compare(left, right) == 0)


def _ordered(relation: str, left: Tree, right: Tree, properties: dict[str, str]) -> Any:
    ours = _value(left, properties)
    if ours is None:
        return None
    theirs = _value(right, properties)
    if theirs is None:
        return None
    if ours[0] == theirs[0] == "S":
        ours, theirs = ("D", _to_double(ours[1])), ("D", _to_double(theirs[1]))
    sign = _compare(ours, theirs)
    return ("B", {">": sign > 0, ">=": sign >= 0, "<": sign < 0, "<=": sign <= 0}[relation])


def _compare(left: Any, right: Any) -> int:
    kinds = left[0] + right[0]
    if kinds == "BS":
        raise BoomError
    if kinds == "SB":
        left = ("B", left[1].lower() == "true")
    elif "B" in kinds and kinds != "BB":
        return -1
    elif kinds in ("SI", "SL", "SD"):
        left = _convert(left[1], right[0])
    elif kinds in ("IS", "LS", "DS"):
        right = _convert(right[1], left[0])
    if "D" in (left[0], right[0]):
        ours, theirs = _place(float(left[1])), _place(float(right[1]))
        return (ours > theirs) - (ours < theirs)
    return (left[1] > right[1]) - (left[1] < right[1])


def _place(number: float) -> tuple[float, int]:
    """Return where a double stands in Java's order of all of them."""
    if number != number:
        return float("inf"), 1
    return number, -1 if number == 0 and str(number).startswith("-") else 0


def _convert(text: str, kind: str) -> tuple[str, Any]:
    if kind == "D":
        return ("D", _to_double(text))
    digits = text[1:] if text[:1] in ("+", "-") else text
    if not digits or any(not each.isdecimal() or ord(each) > 0xFFFF for each in digits):
        raise BoomError
    number = int(text)
    bits = 31 if kind == "I" else 63
    if not -(2**bits) <= number < 2**bits:
        raise BoomError
    return (kind, number)


def _to_double(text: str) -> float:
    bare = text.strip("".join(map(chr, range(33))))
    sign = -1.0 if bare.startswith("-") else 1.0
    magnitude = bare[1:] if bare[:1] in ("+", "-") else bare
    if magnitude == "NaN":
        return float("nan")
    if magnitude == "Infinity":
        return sign * float("inf")
    magnitude = magnitude.rstrip("fFdD") if magnitude[-1:] in "fFdD" else magnitude
    if magnitude[:2] in ("0x", "0X") and "p" in magnitude.lower():
        return sign * float.fromhex(magnitude)
    if not magnitude or any(each not in "0123456789.eE+-" for each in magnitude):
        raise BoomError
    try:
        return sign * float(magnitude)
    except ValueError:
        raise BoomError from None
