"""Docstrings open with a noun or a verb, and functions are named by verbs."""

from __future__ import annotations

import ast
import re

import pytest

from .sources import trees

HEADLESS = re.compile(r"(What|Which|Where|How|Whether|Who|Whom|When|Why)\b")
"""A clause without a head. A property may say "Whether ...": its value is the answer."""

VERBS = {"embed", "exceed", "feed", "need", "proceed", "seed", "shed", "succeed"}
"""Verbs that look like participles."""

IRREGULAR = {
    "begun", "bound", "built", "caught", "chosen", "done", "drawn", "driven", "fed", "found",
    "given", "gone", "grown", "heard", "held", "hidden", "kept", "known", "laid", "left", "lost",
    "made", "meant", "met", "paid", "said", "seen", "sent", "shown", "sold", "spent", "stuck",
    "taken", "thought", "thrown", "told", "understood", "won", "written",
}  # fmt: skip
"""Participles that do not end in -ed."""

_EVENT = "an event that the driver of the state machine in raft reports, beside grew and link_up"
ALLOWED = {
    "appended": _EVENT,
    "archived": "public; the guide's function for messages of a lake",
    "committed": "public; the word of Java's and of other systems' consumers for a stored offset",
    "decoded": "public; the guide's function for messages with their JSON fields",
    "discarded": "public; the list of discarded transactions, beside that of pending ones",
    "encoded": "public; the opposite of decoded",
    "failed": _EVENT,
    "persisted": _EVENT,
    "shipped": _EVENT,
    "trimmed": _EVENT,
}
"""Participles by name, with the reason why each stays."""


def headless_docstrings(tree: ast.Module) -> list[str]:
    """Return the opening words of docstrings that begin with a headless clause."""
    nodes: list[ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef] = [tree]
    nodes += [each for each in ast.walk(tree) if isinstance(each, ast.ClassDef) or is_call(each)]
    return [
        text.splitlines()[0]
        for node in nodes
        if (text := ast.get_docstring(node)) and HEADLESS.match(text)
    ]


def is_call(node: ast.AST) -> bool:
    """Tell whether a node is a function that is called, not read like an attribute."""
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not any(
        "property" in ast.unparse(decorator) or "setter" in ast.unparse(decorator)
        for decorator in node.decorator_list
    )


def participles(tree: ast.Module) -> set[str]:
    """Return the functions that a bare participle names."""
    return {
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and is_participle(node.name)
        and is_call(node)
    }


def is_participle(name: str) -> bool:
    """Tell whether a public name is one word, and a past participle."""
    return name in IRREGULAR or (re.fullmatch(r"[a-z]+ed", name) is not None and name not in VERBS)


def test_docstrings_begin_with_a_noun_or_a_verb() -> None:
    found = {path: lines for path, tree in trees().items() if (lines := headless_docstrings(tree))}
    assert found == {}


def test_functions_are_named_by_verbs() -> None:
    found = {path: participles(tree) for path, tree in trees().items()}
    assert {path: names for path, names in found.items() if names - ALLOWED.keys()} == {}
    assert sorted(ALLOWED.keys() - set().union(*found.values())) == [], "no function has this name"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('"""What a broker keeps."""', ["What a broker keeps."]),
        ('"""The state of a broker."""', []),
        ('def find():\n    """Where it is."""', ["Where it is."]),
        ('@property\ndef is_open(self):\n    """Whether it is open."""', []),
    ],
)
def test_a_headless_docstring_is_noticed(text: str, found: list[str]) -> None:
    assert headless_docstrings(ast.parse(text)) == found


@pytest.mark.parametrize(
    ("name", "found"), [("halved", True), ("told", True), ("feed", False), ("halve", False)]
)
def test_a_participle_is_noticed(name: str, found: bool) -> None:
    assert participles(ast.parse(f"def {name}(): ...")) == ({name} if found else set())
