"""The job that resends dead letters: each once, however often it is stopped, killed and resumed."""

from __future__ import annotations

import contextlib
from typing import Final

from rocketpost.client.admin import Outcome, Selection
from rocketpost.console.jobs.record import JobEvent
from rocketpost.console.jobs.runner import Job, JobStoppedError

KIND: Final = "resend"
_JUDGED_MIN: Final = 20
"""Messages after which the share of refused ones is judged."""


def make_selection(fields: dict[str, str]) -> Selection:
    """Return the dead letters that the fields of an action describe."""
    return Selection(
        ids=frozenset(fields.get("ids", "").replace(",", " ").split()),
        keys=frozenset(fields.get("keys", "").replace(",", " ").split()),
        topic=fields.get("topic") or None,
        cause=fields.get("cause") or None,
        begin_ms=int(fields["begin"]) if fields.get("begin") else None,
        end_ms=int(fields["end"]) if fields.get("end") else None,
    )


async def run_resending(job: Job) -> None:
    """Resend the dead letters of a job.

    The broker's key index tells which copies exist, and its lock keeps others away (ADR 0016). So a
    run begins at the first letter again: those that were sent before are only counted.
    """
    record = job.record
    record.counts = {}
    refused_max = int(record.fields.get("refused") or 100) / 100

    walk = job.client.dead_letters.resend_each(
        record.what,
        make_selection(record.fields),
        rate=float(record.fields.get("rate") or 100),
        after=job.run_before or None,
    )
    async with contextlib.aclosing(walk):
        async for resent in walk:
            record.note(
                JobEvent(
                    id=resent.letter.id,
                    topic=resent.letter.topic or "",
                    outcome=resent.outcome.value.lower(),
                    copy_id=resent.offset_id or "",
                    reason=resent.reason or "",
                )
            )
            job.check()
            refused = record.counts.get(Outcome.REFUSED.value.lower(), 0)
            if record.done >= _JUDGED_MIN and refused > refused_max * record.done:
                raise JobStoppedError(f"{refused} / {record.done}: {resent.reason or ''}")
