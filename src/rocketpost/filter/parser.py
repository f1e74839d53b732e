"""The parser of filter expressions. The grammar, loosest binding first:

    or      := and (OR and)*
    and     := equal (AND equal)*
    equal   := compare ( '=' compare | '<>' compare | IS [NOT] NULL )*
    compare := unary ( ('>'|'>='|'<'|'<=') unary
                     | [NOT] (CONTAINS|STARTSWITH|ENDSWITH) text
                     | [NOT] BETWEEN unary AND unary
                     | [NOT] IN '(' text (',' text)* ')' )*
    unary   := '+' unary | '-' unary | NOT unary | primary
    primary := literal | name | path | '(' or ')' | MATCHES '(' text ')'
    path    := body ( '.' name | '[' integer ']' )+

NOT binds tighter than a comparison, as in RocketMQ: ``NOT a = 1`` is ``(NOT a) = 1``. Unlike in
RocketMQ, text after a complete expression is an error.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, cast

from rocketpost.errors import FilterError
from rocketpost.filter import nodes
from rocketpost.filter.nodes import BodyPath, Constant, Named, Node, Property, Truth, TruthLiteral
from rocketpost.filter.tokens import Token, TokenKind, tokenize
from rocketpost.filter.values import LONG_MAX

OPERANDS_MAX: Final = 512
"""Maximum of properties and values in an expression, and so per message; without IN lists."""
LIST_MAX: Final = 1024
"""Maximum of strings in an IN list."""
PATH_MAX: Final = 16
"""Maximum of steps in a path into a body."""

BODY: Final = "body"
MATCHES: Final = "MATCHES"
_SMALLEST: Final = 5e-324


def parse(text: str, *, paths: bool = False, named: bool = False) -> Truth:
    """Parse an expression into its tree.

    Args:
        text: The expression.
        paths: Whether it may read bodies.
        named: Whether it may refer to named filters.

    Raises:
        FilterError: The expression is wrong; the text says where and why.
    """
    return _Parser(tokenize(text, paths=paths), paths=paths, named=named).parse()


class _Parser:
    def __init__(self, words: Iterator[Token], *, paths: bool, named: bool) -> None:
        self._words = words
        self._tokens: list[Token] = []
        self._at = 0
        self._paths = paths
        self._named = named
        self._operands = 0
        self._level = 0

    def parse(self) -> Truth:
        if self._next.kind is TokenKind.END:
            raise FilterError("the expression is empty")
        found = self._or()
        left = self._next
        if left.kind is not TokenKind.END:
            raise FilterError(
                f"the expression is complete before {left}{_hint(left)}", left.position
            )
        return nodes.as_truth(found)

    # The grammar, loosest binding first.

    def _or(self) -> Node:
        operands = [self._and()]
        while self._take("OR"):
            operands.append(self._and())
        return nodes.make_chain(operands, is_and=False) if len(operands) > 1 else operands[0]

    def _and(self) -> Node:
        operands = [self._equal()]
        while self._take("AND"):
            operands.append(self._equal())
        return nodes.make_chain(operands, is_and=True) if len(operands) > 1 else operands[0]

    def _equal(self) -> Node:
        left = self._compare()
        while True:
            if self._take("="):
                left = nodes.make_equality(left, self._compare())
            elif self._take("<>"):
                equal = nodes.make_equality(left, self._compare())
                left = nodes.make_negation(equal, left.position)
            elif self._take("IS"):
                negated = self._take("NOT")
                self._expect("NULL")
                null = nodes.make_is_null(left)
                left = nodes.make_negation(null, left.position) if negated else null
            else:
                return left

    def _compare(self) -> Node:
        left = self._unary()
        while True:
            word = self._next
            if word.kind is TokenKind.OPERATOR and word.text in (">", ">=", "<", "<="):
                self._at += 1
                relation = cast(nodes.Relation, word.text)
                left = nodes.make_ordering(relation, left, self._unary())
                continue
            negated = self._is("NOT") and self._is("CONTAINS STARTSWITH ENDSWITH BETWEEN IN", 1)
            if negated:
                self._at += 1
            word = self._next
            if self._is("CONTAINS STARTSWITH ENDSWITH"):
                self._at += 1
                searching = cast(nodes.TextRelation, word.text)
                left = nodes.make_search(left, searching, self._text(), negated=negated)
            elif self._take("BETWEEN"):
                low = self._unary()
                self._expect("AND")
                self._count(left.position)  # it is compared twice
                left = nodes.make_between(left, low, self._unary(), negated=negated)
            elif self._take("IN"):
                left = nodes.make_among(left, self._texts(), negated=negated)
            else:
                return left

    def _unary(self) -> Node:
        # Gathered in a loop, since a long row of signs must not fill the stack.
        signs: list[Token] = []
        while self._is("+ - NOT"):
            signs.append(self._next)
            self._at += 1
            if len(signs) > nodes.DEPTH_MAX:
                raise FilterError(f"more than {nodes.DEPTH_MAX} signs in a row", signs[0].position)
        node = self._primary()
        for sign in reversed(signs):
            if sign.text == "-":
                node = nodes.make_negative(node, sign.position)
            elif sign.text == "NOT":
                node = nodes.make_negation(node, sign.position)
        return node

    def _primary(self) -> Node:
        word = self._next
        self._at += 1
        position = word.position
        if word.kind is TokenKind.OPERATOR and word.text == "(":
            return self._group(position)
        self._count(position)
        match word.kind:
            case TokenKind.TEXT:
                return Constant(position=position, value=word.text)
            case TokenKind.INTEGER:
                return Constant(position=position, value=_integer(word))
            case TokenKind.DECIMAL:
                return Constant(position=position, value=_decimal(word))
            case TokenKind.NAME:
                return self._name(word)
        if word.text in ("TRUE", "FALSE", "NULL"):
            value = None if word.text == "NULL" else word.text == "TRUE"
            return TruthLiteral(position=position, value=value)
        before = f" after {self._tokens[self._at - 2]}" if self._at > 1 else ""
        raise FilterError(
            f"expected a property, a value or ({before}, not {word}{_hint(word)}", position
        )

    def _group(self, position: int) -> Node:
        self._level += 1
        if self._level > nodes.DEPTH_MAX:
            raise FilterError(f"brackets nest deeper than {nodes.DEPTH_MAX} levels", position)
        inner = self._or()
        self._expect(")")
        self._level -= 1
        return inner

    def _name(self, word: Token) -> Node:
        if self._paths and word.text == BODY and self._is(". ["):
            return self._path(word.position)
        if word.text.upper() == MATCHES and self._is("("):
            if not self._named:
                raise FilterError(
                    "MATCHES names a filter that a broker keeps; it cannot be used here",
                    word.position,
                )
            self._at += 1
            name = self._text()
            self._expect(")")
            return Named(position=word.position, name=name)
        return Property(position=word.position, name=word.text)

    def _path(self, position: int) -> Node:
        steps: list[str | int] = []
        while self._is(". ["):
            if self._take("."):
                step = self._next
                if step.kind not in (TokenKind.NAME, TokenKind.KEYWORD):
                    raise FilterError(f"expected a name after '.', not {step}", step.position)
                steps.append(step.raw)
                self._at += 1
            else:
                self._at += 1
                steps.append(self._index())
                self._expect("]")
            if len(steps) > PATH_MAX:
                raise FilterError(f"a path has more than {PATH_MAX} steps", position)
        return BodyPath(position=position, path=tuple(steps))

    def _index(self) -> int | str:
        word = self._next
        self._at += 1
        if word.kind is TokenKind.TEXT:
            return word.text
        if word.kind is not TokenKind.INTEGER:
            raise FilterError(f"expected a number or a string in [ ], not {word}", word.position)
        return _integer(word)

    def _texts(self) -> list[str]:
        self._expect("(")
        texts = [self._text()]
        while self._take(","):
            texts.append(self._text())
            if len(texts) > LIST_MAX:
                raise FilterError(
                    f"an IN list has more than {LIST_MAX} strings", self._next.position
                )
        self._expect(")")
        return texts

    # Words.

    def _token(self, at: int) -> Token:
        # Words are read on demand, so that reading a hostile text stops at its first mistake.
        tokens = self._tokens
        while len(tokens) <= at:
            if tokens and tokens[-1].kind is TokenKind.END:
                return tokens[-1]
            tokens.append(next(self._words))
        return tokens[at]

    @property
    def _next(self) -> Token:
        return self._token(self._at)

    def _is(self, words: str, ahead: int = 0) -> bool:
        token = self._token(self._at + ahead)
        is_word = token.kind is TokenKind.KEYWORD or token.kind is TokenKind.OPERATOR
        return is_word and token.text in words.split()

    def _take(self, word: str) -> bool:
        if self._is(word):
            self._at += 1
            return True
        return False

    def _expect(self, word: str) -> None:
        if not self._take(word):
            found = self._next
            raise FilterError(f"{word} is expected here, not {found}", found.position)

    def _text(self) -> str:
        found = self._next
        if found.kind is not TokenKind.TEXT:
            raise FilterError(
                f"a string in single quotes is expected here, not {found}", found.position
            )
        self._at += 1
        return found.text

    def _count(self, position: int) -> None:
        self._operands += 1
        if self._operands > OPERANDS_MAX:
            raise FilterError(f"there are more than {OPERANDS_MAX} properties and values", position)


def _integer(word: Token) -> int:
    digits = word.text.rstrip("lL")
    if len(digits) > len(str(LONG_MAX)) or int(digits) > LONG_MAX:
        raise FilterError("the number does not fit into 64 bits", word.position)
    return int(digits)


def _decimal(word: Token) -> float:
    value = float(word.text)
    if not _SMALLEST <= value < float("inf"):
        raise FilterError("the number is zero, too small or too large for a double", word.position)
    return value


def _hint(word: Token) -> str:
    if word.kind is TokenKind.NAME and word.text.upper() in ("LIKE", "ESCAPE"):
        return "; there is no LIKE in filters: use CONTAINS, STARTSWITH or ENDSWITH"
    if word.kind is TokenKind.OPERATOR and word.text == "=":
        return "; one = is enough"
    if word.kind is TokenKind.OPERATOR and word.text == "-":
        return "; there is no arithmetic in filters, and a comment needs a line end"
    if word.kind is TokenKind.OPERATOR and word.text == "+":
        return "; there is no arithmetic in filters"
    return ""
