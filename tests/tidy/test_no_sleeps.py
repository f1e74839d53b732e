"""Unit tests wait for events and conditions, never for a time.

``asyncio.sleep`` may stand in a test that runs in virtual time. Elsewhere ``testing.waiting`` has
what is needed: ``until`` a condition holds, or ``settle`` until nothing is left to do.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

UNIT = Path(__file__).resolve().parents[1] / "unit"
ALLOWED = {
    "server/test_long_polling.py::test_those_who_wait_with_one_pull_are_not_behind_thousands": (
        "spends the time of a turn, which is measured by the real clock"
    ),
}
"""Functions that may sleep, each with the reason."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


def sleeps_in(node: ast.AST, name: str = "") -> Iterator[tuple[str, int]]:
    """Yield the functions and lines below ``node`` that sleep for real."""
    if isinstance(node, Function):
        if any("in_virtual_time" in ast.unparse(each) for each in node.decorator_list):
            return
        name = name or node.name
    if isinstance(node, ast.Call) and is_sleep(node):
        yield name, node.lineno
    for child in ast.iter_child_nodes(node):
        yield from sleeps_in(child, name)


def is_sleep(call: ast.Call) -> bool:
    last = call.func.attr if isinstance(call.func, ast.Attribute) else ast.unparse(call.func)
    if last not in ("sleep", "wait"):
        return False
    match ast.unparse(call.func):
        case "asyncio.sleep":
            return ast.unparse(call.args[0]) != "0"
        case "time.sleep" | "sleep" | "threading.Event().wait":
            return True
    return False


def test_unit_tests_do_not_sleep() -> None:
    found = {
        f"{path.relative_to(UNIT).as_posix()}::{name}": line
        for path in sorted(UNIT.rglob("*.py"))
        if re.search(r"sleep|Event\(\)\.wait", text := path.read_text())
        for name, line in sleeps_in(ast.parse(text))
    }
    real = {function: line for function, line in found.items() if function not in ALLOWED}
    assert not real, "await an event, until() or settle(), or run it in_virtual_time"
    assert ALLOWED.keys() <= found.keys(), "these sleep no longer"
