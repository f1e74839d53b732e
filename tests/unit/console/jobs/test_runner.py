"""Jobs: their files, stopping between messages, resuming, and one at a time for each thing."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from rocketpost.client.admin import AdminClient
from rocketpost.console.jobs.record import EVENTS_MAX, JobEvent, JobRecord, JobState
from rocketpost.console.jobs.runner import BusyError, Job, Jobs, JobStoppedError, new_job_id
from rocketpost.errors import ClientError

NOBODY = cast("AdminClient", SimpleNamespace(session=SimpleNamespace(client_id="me")))


def make_record(**more: Any) -> JobRecord:
    common: dict[str, Any] = {
        "id": new_job_id(), "kind": "count", "what": "billing", "cluster": "a:1", "user": "ada",
        "command": "", "fields": {}, "total": 3, "begun_ms": 1,
    }  # fmt: skip
    return JobRecord(**common | more)


def read(directory: Path, record: JobRecord) -> JobRecord:
    return msgspec.json.decode((directory / f"{record.id}.json").read_bytes(), type=JobRecord)


class Counting:
    """Deals with a message whenever it is told to."""

    def __init__(self) -> None:
        self.turns = asyncio.Semaphore(0)
        self.error: Exception | None = None

    async def run(self, job: Job) -> None:
        while job.record.done < job.record.total:
            await self.turns.acquire()
            if self.error is not None:
                raise self.error
            event = JobEvent(id=str(job.record.done), topic="Orders", outcome="sent")
            job.record.note(event)
            job.check()


async def until_ended(record: JobRecord) -> None:
    async with asyncio.timeout(5):
        while record.state is JobState.RUNNING:
            await asyncio.sleep(0)


async def test_a_job_runs_to_its_end_and_its_file_says_so(tmp_path: Path) -> None:
    work, record = Counting(), make_record()
    async with Jobs(tmp_path, {"count": work.run}) as jobs:
        await jobs.start(record, NOBODY)
        assert read(tmp_path, record).state is JobState.RUNNING
        assert (tmp_path / f"{record.id}.json").stat().st_mode & 0o077 == 0
        for _ in range(3):
            work.turns.release()
        await until_ended(record)
        assert (record.state, record.counts) == (JobState.DONE, {"sent": 3})
        assert not jobs.stop(record.id)
    assert read(tmp_path, record).done == 3


async def test_a_job_stops_after_its_message_and_goes_on(tmp_path: Path) -> None:
    work, record = Counting(), make_record()
    async with Jobs(tmp_path, {"count": work.run}) as jobs:
        await jobs.start(record, NOBODY)
        with pytest.raises(BusyError, match=record.id):
            await jobs.start(make_record(), NOBODY)
        other = await jobs.start(make_record(what="shipping", total=0), NOBODY)
        await until_ended(other)
        assert jobs.stop(record.id)
        work.turns.release()
        await until_ended(record)
        assert (record.state, record.done) == (JobState.STOPPED, 1)
        assert record.can_resume
        await jobs.start(record, NOBODY)
        work.turns.release()
        work.turns.release()
        await until_ended(record)
        assert (record.state, record.done) == (JobState.DONE, 3)
        assert not record.can_resume


@pytest.mark.parametrize(
    ("error", "state", "problem"),
    [
        (ClientError("no broker"), JobState.FAILED, "no broker"),
        (JobStoppedError("too many"), JobState.STOPPED, "too many"),
        (KeyError("x"), JobState.FAILED, "KeyError: 'x'"),
    ],
)
async def test_the_reason_of_an_end_is_kept(
    tmp_path: Path, error: Exception, state: JobState, problem: str
) -> None:
    work, record = Counting(), make_record()
    work.error = error
    async with Jobs(tmp_path, {"count": work.run}) as jobs:
        await jobs.start(record, NOBODY)
        work.turns.release()
        await until_ended(record)
    assert (record.state, record.problem) == (state, problem)
    assert read(tmp_path, record).problem == problem


async def test_a_job_is_interrupted_by_the_end_of_the_console(tmp_path: Path) -> None:
    work, record = Counting(), make_record()
    async with Jobs(tmp_path, {"count": work.run}) as jobs:
        await jobs.start(record, NOBODY)
    found = read(tmp_path, record)
    assert (found.state, found.run_id) == (JobState.INTERRUPTED, "me")


def test_a_killed_console_finds_its_jobs(tmp_path: Path) -> None:
    record = make_record()
    (tmp_path / f"{record.id}.json").write_bytes(msgspec.json.encode(record))
    (tmp_path / "torn.json").write_bytes(b'{"id":')
    jobs = Jobs(tmp_path, {})
    jobs.load_blocking()
    [found] = jobs.list()
    assert (found.id, found.state) == (record.id, JobState.INTERRUPTED)
    assert jobs.find(record.id) is found
    assert jobs.find("other") is None


def test_only_the_newest_outcomes_are_kept() -> None:
    record = make_record()
    for number in range(EVENTS_MAX + 5):
        record.note(JobEvent(id=str(number), topic="Orders", outcome="sent"))
    assert record.done == EVENTS_MAX + 5
    assert len(record.events) == EVENTS_MAX
    assert record.events[-1].id == str(EVENTS_MAX + 4)
