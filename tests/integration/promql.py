"""A check of PromQL expressions: every metric and every label that they name is served."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import promql_parser

Served = Mapping[str, Mapping[str, set[str]]]
"""The names of samples, and the values of each of their labels."""


def selectors(expression: Any) -> Iterator[Any]:
    """Yield every selector of metrics in an expression."""
    if isinstance(expression, promql_parser.VectorSelector):
        yield expression
    elif isinstance(expression, promql_parser.MatrixSelector):
        yield expression.vector_selector
    elif isinstance(expression, promql_parser.Call):
        for argument in expression.args:
            yield from selectors(argument)
    elif isinstance(expression, promql_parser.BinaryExpr):
        yield from selectors(expression.lhs)
        yield from selectors(expression.rhs)
    elif hasattr(expression, "expr"):
        yield from selectors(expression.expr)


def groupings(expression: Any) -> Iterator[tuple[Any, list[str]]]:
    """Yield every aggregation in an expression with the labels that it keeps."""
    if isinstance(expression, promql_parser.AggregateExpr):
        if expression.modifier is not None:
            yield expression, list(expression.modifier.labels)
        yield from groupings(expression.expr)
    elif isinstance(expression, promql_parser.Call):
        for argument in expression.args:
            yield from groupings(argument)
    elif isinstance(expression, promql_parser.BinaryExpr):
        yield from groupings(expression.lhs)
        yield from groupings(expression.rhs)
    elif hasattr(expression, "expr"):
        yield from groupings(expression.expr)


def problems(text: str, served: Served) -> list[str]:
    """Return what an expression names that is not served."""
    expression = promql_parser.parse(text)
    found = []
    for selector in selectors(expression):
        labels = served.get(selector.name)
        if labels is None:
            found.append(f"there is no metric {selector.name}")
            continue
        for matcher in selector.matchers.matchers:
            if matcher.name not in labels:
                found.append(f"{selector.name} has no label {matcher.name}")
            elif (
                matcher.op == promql_parser.MatchOp.Equal
                and matcher.value not in labels[matcher.name]
            ):
                found.append(f"{selector.name} never has {matcher.name}={matcher.value}")
    for aggregation, kept in groupings(expression):
        for selector in selectors(aggregation):
            missing = set(kept) - set(served.get(selector.name, {}))
            found += [f"{selector.name} has no label {label}" for label in sorted(missing)]
    return found
