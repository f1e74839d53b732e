from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import rocketpost.server
from rocketpost.errors import ConfigError
from rocketpost.server.settings.broker import broker_settings
from rocketpost.server.settings.metrics import USED_LABELS, parse_labels


@pytest.mark.parametrize(
    ("labels", "reason"),
    [
        ("zone:a,cluster:x", "have a label cluster already"),
        ("le:5", "have a label le already"),
        ("zone:a,zone:b", "zone is there twice"),
        ("__name__:up", "Prometheus drops such labels"),
        ("zone", "is not name:value"),
    ],
)
def test_labels_that_would_spoil_every_series_are_refused(labels: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=f"metricsLabel={labels}: .*{reason}"):
        broker_settings({"metricsLabel": labels})


def test_labels_with_new_names_are_read() -> None:
    assert parse_labels("zone:a, env:b:c") == {"zone": "a", "env": "b:c"}


def test_every_label_of_a_metric_is_known() -> None:
    assert set(_labels_in_sources()) | {"le"} == USED_LABELS


def _labels_in_sources() -> Iterator[str]:
    """Yield the names in calls of ``Labels``, ``PairLabels`` and ``label_text``."""
    for path in Path(*rocketpost.server.__path__).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
                continue
            if node.func.id in ("Labels", "PairLabels"):
                yield from (str(each.value) for each in node.args if isinstance(each, ast.Constant))
            elif node.func.id == "label_text" and isinstance(node.args[0], ast.Dict):
                keys = node.args[0].keys
                yield from (str(each.value) for each in keys if isinstance(each, ast.Constant))
