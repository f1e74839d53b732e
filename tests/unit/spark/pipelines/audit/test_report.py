from __future__ import annotations

import json

import pytest

from rocketpost.spark.pipelines.audit.report import AuditReport, Finding


def report(*findings: Finding) -> AuditReport:
    return AuditReport(
        topics=("T",),
        source="",
        identified_by="uniqKey",
        messages=0,
        stored_bytes=0,
        first_ms=None,
        last_ms=None,
        findings=findings,
        queues=(),
        latencies=(),
        hot_keys=(),
        timeline=(),
    )


@pytest.mark.parametrize(
    ("count", "is_fault", "is_whole"), [(0, True, True), (1, True, False), (9, False, True)]
)
def test_only_findings_with_messages_fail_the_audit(
    count: int, is_fault: bool, is_whole: bool
) -> None:
    made = report(Finding("missing", count, is_fault, "not stored"))
    assert made.is_whole is is_whole
    told = json.loads(made.to_json())
    assert told["isWhole"] is is_whole
    assert told["findings"][0]["count"] == made.finding("missing").count == count


def test_a_finding_that_was_not_asked_for_is_an_error() -> None:
    with pytest.raises(KeyError):
        report().finding("missing")
