"""Jobs: the list, one job with its progress, and the buttons that stop and resume it."""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

from rocketpost.console.jobs.record import JobRecord, JobState
from rocketpost.console.jobs.runner import BusyError
from rocketpost.console.pages import Page, json_response, redirect
from rocketpost.console.visit import BadInputError, NotFoundError, Visit

_REFRESH_MS: Final = 1000


async def show_jobs(visit: Visit) -> Page:
    """Show all jobs of the cluster."""
    found = [each for each in visit.services.jobs.list() if each.cluster == visit.cluster.name]
    rows = [_brief(each) for each in found]
    return Page(
        template="jobs.html",
        title=visit.text("nav.jobs"),
        data={"rows": rows},
        is_live=True,
    )


async def show_job(visit: Visit) -> Page:
    """Show one job.

    Raises:
        NotFoundError: There is none.
    """
    record = _find(visit)
    is_running = record.state is JobState.RUNNING
    left = max(0, record.total - record.done)
    return Page(
        template="job.html",
        title=visit.text(f"jobs.kind_{record.kind}"),
        data=record,
        command=record.command,
        is_live=True,
        refresh_ms=_REFRESH_MS if is_running else 0,
        values={
            "share": min(1.0, record.done / record.total) if record.total else 1.0,
            "left_seconds": left / record.rate if is_running and record.rate else None,
        },
    )


async def stop_job(visit: Visit) -> Response:
    """Stop a job after its present message."""
    record = _find(visit)
    outcome = "asked" if visit.services.jobs.stop(record.id) else "it does not run"
    await _record(visit, "stop job", record, outcome)
    return _answer(visit, record)


async def resume_job(visit: Visit) -> Response:
    """Resume a job from its current place.

    Raises:
        BadInputError: It runs or is done, or another one works on the same thing.
    """
    record = _find(visit)
    if not record.can_resume:
        raise BadInputError(visit.text("jobs.no_resume"))
    target = record.fields.get("target_cluster") or record.cluster
    other = next((each for each in visit.services.clusters if each.name == target), visit.cluster)
    try:
        await visit.services.jobs.start(record, visit.admin, other.client_of(visit.session))
    except BusyError as error:
        raise BadInputError(visit.text("jobs.busy", id=error)) from None
    record.runs += 1
    await _record(visit, "resume job", record, "began")
    return _answer(visit, record)


def _find(visit: Visit) -> JobRecord:
    record = visit.services.jobs.find(visit.param("id"))
    if record is None or record.cluster != visit.cluster.name:
        raise NotFoundError(visit.param("id"))
    return record


def _answer(visit: Visit, record: JobRecord) -> Response:
    if visit.wants_json:
        return json_response({"job": record.id})
    return redirect(visit.link(f"/jobs/{record.id}"))


def _brief(record: JobRecord) -> dict[str, object]:
    return {
        "id": record.id,
        "kind": record.kind,
        "what": record.what,
        "state": record.state.value,
        "done": record.done,
        "total": record.total,
        "user": record.user,
        "begunMs": record.begun_ms,
        "endedMs": record.ended_ms,
    }


async def _record(visit: Visit, act: str, record: JobRecord, outcome: str) -> None:
    assert visit.session is not None
    await visit.services.audit.record(
        user=visit.session.user.name,
        address=visit.address,
        act=act,
        what=f"{record.kind} {record.what} {record.id}",
        outcome=outcome,
    )
