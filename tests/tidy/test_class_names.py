"""No reader meets two classes of the same name.

A reader meets two classes if their modules are in one package, or if one module imports from both.
Protocols are not counted: they say what a module needs of a collaborator, and are named after it.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from itertools import combinations

from .sources import trees

THE_SAME_FOR_THREADS = "the same client without await; a program imports one of the two"
ALLOWED = dict.fromkeys(
    (
        "AdminClient",
        "LitePullConsumer",
        "Producer",
        "PullConsumer",
        "PushConsumer",
        "SimpleConsumer",
        "TransactionProducer",
    ),
    THE_SAME_FOR_THREADS,
)
"""Names of two classes that a reader may meet, with the reason."""


def modules() -> dict[str, ast.Module]:
    """Return the trees of all modules by their dotted names."""
    return {
        f"rocketpost.{path.removesuffix('.py').removesuffix('/__init__').replace('/', '.')}": tree
        for path, tree in trees().items()
    }


def classes(tree: ast.Module) -> set[str]:
    """Return the public classes of a module that are no protocols."""
    return {
        node.name
        for node in tree.body
        if isinstance(node, ast.ClassDef)
        and not node.name.startswith("_")
        and not any("Protocol" in ast.unparse(base) for base in node.bases)
    }


def imported(module: str, tree: ast.Module) -> set[str]:
    """Return a module itself and those from which it imports."""
    found = {module}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            found |= {node.module, *(f"{node.module}.{name.name}" for name in node.names)}
    return found


def meetings(sources: dict[str, ast.Module]) -> dict[str, set[str]]:
    """Return the names that two classes have, with the places where a reader meets both."""
    homes: dict[str, set[str]] = defaultdict(set)
    for module, tree in sources.items():
        for name in classes(tree):
            homes[name].add(module)
    shared = {name: modules for name, modules in homes.items() if len(modules) > 1}
    places: dict[str, set[str]] = defaultdict(set)
    for name, modules in shared.items():
        for one, other in combinations(sorted(modules), 2):
            if one.rpartition(".")[0] == other.rpartition(".")[0]:
                places[name].add(one.rpartition(".")[0])
    for module, tree in sources.items():
        seen = imported(module, tree)
        for name, modules in shared.items():
            if len(modules & seen) > 1:
                places[name].add(module)
    return places


def test_no_reader_meets_two_classes_of_one_name() -> None:
    found = meetings(modules())
    assert {name: places for name, places in found.items() if name not in ALLOWED} == {}
    assert sorted(ALLOWED.keys() - found.keys()) == [], "nobody meets these any more"


def test_a_second_class_is_noticed() -> None:
    one, other = ast.parse("class Due: ..."), ast.parse("class Due: ...")
    assert meetings({"a.one": one, "a.other": other}) == {"Due": {"a"}}
    assert meetings({"a.one": one, "b.other": other}) == {}
    both = ast.parse("from a.one import Due\nfrom b import other")
    assert meetings({"a.one": one, "b.other": other, "c": both}) == {"Due": {"c"}}
    protocol = ast.parse("class Due(Protocol): ...")
    assert meetings({"a.one": one, "a.other": protocol}) == {}
