"""Jobs of the console: started, stopped, resumed, and kept in files of the state directory.

A file is written once a second while a job runs and when it ends. A console that is killed finds
its jobs again at the next start and shows them as interrupted; a user resumes them. Each kind of
job makes its repetition safe itself; the file does not.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import msgspec

from rocketpost.client.admin import AdminClient
from rocketpost.console.jobs.record import JobRecord, JobState
from rocketpost.errors import RocketpostError

logger = logging.getLogger(__name__)

SAVE_SECONDS: Final = 1.0
STOP_SECONDS: Final = 5.0
"""Time in which a job stops after its present message; then it is cancelled."""
KEPT_MAX: Final = 200
_ID: Final = re.compile(r"[0-9a-f]{16}")


class JobStoppedError(Exception):
    """Ends a job between two messages; the text is the reason."""


class BusyError(Exception):
    """Another job works on the same thing; the text is its id."""


class Job:
    """A job that runs. Belongs to the event loop."""

    def __init__(self, record: JobRecord, client: AdminClient, other: AdminClient) -> None:
        self.record = record
        self.client = client
        self.other = other
        """The client of the cluster that a copy goes to."""
        self.run_before = record.run_id
        """The client of the run before, which has ended; empty if this is the first."""
        record.run_id = client.session.client_id
        self.task: asyncio.Task[None] | None = None
        self._is_stopping = False

    def check(self) -> None:
        """Raise :class:`JobStoppedError` if the job is to stop; called between two messages."""
        if self._is_stopping:
            raise JobStoppedError("")

    def stop(self) -> None:
        """Stop after the present message, or soon."""
        self._is_stopping = True
        assert self.task is not None
        asyncio.get_running_loop().call_later(STOP_SECONDS, self.task.cancel)

    @property
    def is_stopping(self) -> bool:
        """Whether somebody asked it to stop."""
        return self._is_stopping


Work = Callable[[Job], Awaitable[None]]


class Jobs:
    """All jobs of a console. Belongs to the event loop; use it as a context while they may run.

    Args:
        directory: The directory of their files.
        works: The function of each kind of job.
    """

    def __init__(self, directory: Path, works: Mapping[str, Work]) -> None:
        self._directory = directory
        self._works = dict(works)
        self._records: dict[str, JobRecord] = {}
        self._running: dict[str, Job] = {}
        self._group = asyncio.TaskGroup()

    def load_blocking(self) -> None:
        """Read the files; jobs that ran are interrupted now."""
        for path in sorted(self._directory.glob("*.json")):
            try:
                record = msgspec.json.decode(path.read_bytes(), type=JobRecord)
            except (OSError, msgspec.DecodeError) as error:
                logger.warning("job not read: file=%s reason=%s", path.name, error)
                continue
            if record.state is JobState.RUNNING:
                record.state = JobState.INTERRUPTED
            self._records[record.id] = record

    async def __aenter__(self) -> Self:
        await self._group.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for job in self._running.values():
            assert job.task is not None
            job.task.cancel()
        try:
            await self._group.__aexit__(kind, error, trace)
        finally:
            for job in self._running.values():  # those that were cancelled before they began
                job.record.state = JobState.INTERRUPTED
                await self._save(job.record)

    def list(self) -> list[JobRecord]:
        """Return all jobs, the newest first."""
        return sorted(self._records.values(), key=lambda each: -each.begun_ms)

    def find(self, job_id: str) -> JobRecord | None:
        """Return a job."""
        return self._records.get(job_id)

    async def start(
        self, record: JobRecord, client: AdminClient, other: AdminClient | None = None
    ) -> JobRecord:
        """Start a job, and return when its file is written.

        Raises:
            BusyError: Another one works on the same thing.
            OSError: The file cannot be written.
        """
        for each in self._running.values():
            same = each.record
            if (same.kind, same.cluster, same.what) == (record.kind, record.cluster, record.what):
                raise BusyError(same.id)
        record.state, record.problem, record.ended_ms = JobState.RUNNING, "", None
        job = Job(record, client, other or client)
        self._records[record.id] = record
        self._running[record.id] = job
        try:
            await self._save(record)
        except OSError:
            del self._running[record.id]
            raise
        await self._forget_old()
        job.task = self._group.create_task(self._run(job))
        return record

    def stop(self, job_id: str) -> bool:
        """Stop a job that runs; return whether it does."""
        job = self._running.get(job_id)
        if job is None:
            return False
        job.stop()
        return True

    async def _run(self, job: Job) -> None:
        record = job.record
        saver = self._group.create_task(self._save_often(record))
        try:
            await self._works[record.kind](job)
            record.state = JobState.DONE
        except JobStoppedError as error:
            record.state, record.problem = JobState.STOPPED, str(error)
        except asyncio.CancelledError:
            stopped = job.is_stopping
            record.state = JobState.STOPPED if stopped else JobState.INTERRUPTED
        except RocketpostError as error:
            record.state, record.problem = JobState.FAILED, str(error) or type(error).__name__
        except Exception as error:
            logger.exception("job failed: id=%s", record.id)
            record.state, record.problem = JobState.FAILED, f"{type(error).__name__}: {error}"
        finally:
            record.ended_ms, record.rate = time.time_ns() // 1_000_000, None
            saver.cancel()
            self._running.pop(record.id, None)
            try:
                await self._save(record)
            except OSError as error:
                logger.error("job not saved: id=%s reason=%s", record.id, error)

    async def _save_often(self, record: JobRecord) -> None:
        loop = asyncio.get_running_loop()
        at, before = loop.time(), record.done
        while True:
            await asyncio.sleep(SAVE_SECONDS)
            now, done = loop.time(), record.done
            record.rate, at, before = (done - before) / (now - at), now, done
            try:
                await self._save(record)
            except OSError as error:
                logger.error("job not saved: id=%s reason=%s", record.id, error)

    async def _save(self, record: JobRecord) -> None:
        data = msgspec.json.encode(record)
        await asyncio.to_thread(self._write_blocking, record.id, data)

    def _write_blocking(self, job_id: str, data: bytes) -> None:
        assert _ID.fullmatch(job_id)
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        new = self._directory / f"{job_id}.{secrets.token_hex(4)}.new"
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        new.replace(self._directory / f"{job_id}.json")

    async def _forget_old(self) -> None:
        for record in self.list()[KEPT_MAX:]:
            if record.id not in self._running:
                del self._records[record.id]
                path = self._directory / f"{record.id}.json"
                await asyncio.to_thread(path.unlink, True)


def new_job_id() -> str:
    """Return the id of a new job."""
    return secrets.token_hex(8)
