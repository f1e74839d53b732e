"""A table of the settings whose proofs were tried, at the end of the run."""

from __future__ import annotations

from collections import Counter

import pytest

CHECK = "test_the_proof_fails_if_the_setting_is_not_read"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    held: Counter[str] = Counter()
    not_held: Counter[str] = Counter()
    names = []
    for word, tally in (("passed", held), ("failed", not_held)):
        for report in terminalreporter.getreports(word):
            properties = dict(report.user_properties)
            if CHECK not in report.nodeid or "kind" not in properties:
                continue
            tally[str(properties["kind"])] += 1
            if word == "failed":
                names.append(f"{properties['kind']} {properties['setting']}")
    kinds = sorted(held.keys() | not_held.keys())
    if not kinds:
        return
    terminalreporter.section("settings whose proof fails when nothing reads them")
    terminalreporter.write_line(f"{'kind':24}{'held':>8}{'not held':>12}")
    for kind in kinds:
        terminalreporter.write_line(f"{kind:24}{held[kind]:8}{not_held[kind]:12}")
    terminalreporter.write_line(f"{'all':24}{held.total():8}{not_held.total():12}")
    for name in names:
        terminalreporter.write_line(f"not held: {name}")
