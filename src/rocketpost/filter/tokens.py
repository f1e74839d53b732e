"""The tokenizer of filter expressions.

    keyword     NOT AND OR BETWEEN IN TRUE FALSE NULL IS CONTAINS STARTSWITH ENDSWITH, in any case
    name        letter, _ or $, then also digits
    integer     0, or digits that do not start with 0 and may end in l or L
    decimal     5.5  5.  .5  5E10  5.5e-3
    text        'single quotes', '' for one quote inside
    operator    = <> > >= < <= + - ( ) ,   and for paths into a body . [ ]
    comment     -- to the end of the line, which must have a line end; /* ... */

As in RocketMQ, the longest match counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import Enum, auto
from typing import Final, NamedTuple

from rocketpost.errors import FilterError

LENGTH_MAX: Final = 16 * 1024
"""Maximum of characters in an expression."""

_SHOWN_MAX: Final = 32

KEYWORDS: Final = frozenset(
    (
        *("NOT", "AND", "OR", "BETWEEN", "IN", "TRUE", "FALSE", "NULL", "IS"),
        *("CONTAINS", "STARTSWITH", "ENDSWITH"),
    )
)


class TokenKind(Enum):
    """The kind of a word."""

    KEYWORD = auto()
    NAME = auto()
    INTEGER = auto()
    DECIMAL = auto()
    TEXT = auto()
    OPERATOR = auto()
    END = auto()


class Token(NamedTuple):
    """One word. ``text`` is upper case for keywords, and decoded for text in quotes."""

    kind: TokenKind
    text: str
    position: int
    """Index of its first character, counted from 1."""
    raw: str
    """The text as written."""

    def __str__(self) -> str:
        if self.kind is TokenKind.END:
            return "the end of the expression"
        shown = self.text if len(self.text) <= _SHOWN_MAX else f"{self.text[:_SHOWN_MAX]}..."
        return f"the text '{shown}'" if self.kind is TokenKind.TEXT else repr(shown)


# Each alternative consumes all that it has examined, so that no text is read twice.
_WORD: Final = re.compile(
    r"""(?P<skip>    [ \t\n\r\f]++ | /\*(?:[^*]|\*(?!/))*+\*/ )
      | (?P<decimal>  [0-9]++(?:\.[0-9]*+(?:[eE][+-]?[0-9]++)?|[eE][+-]?[0-9]++)
                    | \.[0-9]++(?:[eE][+-]?[0-9]++)? )
      | (?P<integer>  [0-9]++[lL]? )
      | (?P<text>     '[^']*(?:''[^']*)*' )
      | (?P<name>     [A-Za-z_$][A-Za-z0-9_$]*+ )
      | (?P<operator> <> | >= | <= | [=<>+\-(),] )
      | (?P<path>     [.\[\]] )
    """,
    re.VERBOSE,
)

_HINTS: Final = {
    "!": "write <> for not equal",
    '"': "put strings in single quotes",
    "*": "there is no arithmetic in filters",
    "/": "there is no arithmetic in filters, and a comment ends with */",
    "%": "there is no arithmetic in filters",
    "&": "write AND",
    "|": "write OR",
    "'": "the text is not closed by a quote",
    ";": "an expression ends without a semicolon",
}


def tokenize(text: str, *, paths: bool) -> Iterator[Token]:
    """Yield the words of an expression, then END.

    Args:
        text: The expression.
        paths: Whether to accept the words of paths into a body.

    Raises:
        FilterError: A part is not a word, or the expression is too long.
    """
    if len(text) > LENGTH_MAX:
        raise FilterError(f"the expression has {len(text)} characters, more than {LENGTH_MAX}")
    at, end = 0, len(text)
    last_line_end = max(text.rfind("\n"), text.rfind("\r"))
    while at < end:
        if text.startswith("--", at) and at < last_line_end:
            ends = (text.find("\n", at), text.find("\r", at))
            at = min(each for each in ends if each >= 0) + 1
            continue
        found = _WORD.match(text, at)
        if found is None or (found.lastgroup == "path" and not paths):
            char = text[at]
            hint = f"; {_HINTS[char]}" if char in _HINTS else ""
            raise FilterError(f"{char!r} does not belong here{hint}", at + 1)
        if found.lastgroup != "skip":
            yield _token(found)
        at = found.end()
    yield Token(TokenKind.END, "", end + 1, "")


def _token(found: re.Match[str]) -> Token:
    word, position = found.group(), found.start() + 1
    match found.lastgroup:
        case "name":
            upper = word.upper()
            if upper in KEYWORDS:
                return Token(TokenKind.KEYWORD, upper, position, word)
            return Token(TokenKind.NAME, word, position, word)
        case "text":
            return Token(TokenKind.TEXT, word[1:-1].replace("''", "'"), position, word)
        case "integer":
            if word[0] == "0" and word.rstrip("lL") != "0":
                raise FilterError("a whole number does not start with 0", position)
            return Token(TokenKind.INTEGER, word, position, word)
        case "decimal":
            return Token(TokenKind.DECIMAL, word, position, word)
    return Token(TokenKind.OPERATOR, word, position, word)
