"""Messages that a change of a topic's queue numbers would hide.

To shrink a topic without hiding anything, lower ``writeQueueNums``, wait until the last queues are
consumed, then lower ``readQueueNums``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from rocketpost.model.topic import TopicConfig

_GROUPS_NAMED_MAX: Final = 10


class Behind(NamedTuple):
    """Messages of a queue that ``group`` has not consumed; that nobody has, if it is empty."""

    queue_id: int
    group: str
    messages: int


def hidden_messages(
    before: TopicConfig | None, after: TopicConfig, behind: Sequence[Behind]
) -> str | None:
    """Describe the messages that no consumer gets after a change of queue numbers, or return None.

    Args:
        before: The topic now; None if it is new.
        after: The topic after the change.
        behind: Unconsumed messages of the queues that would no longer be read.
    """
    read, write = after.read_queue_nums, after.write_queue_nums
    hidden = []
    if write > read:
        hidden.append(f"nobody would read what is sent to {queues_text(range(read, write))}")
    if behind:
        hidden.append(_unread_text(behind))
    if not hidden:
        return None
    advice = (
        f"set readQueueNums to {write} or more"
        if before is None or read >= before.read_queue_nums
        else "to shrink a topic, lower writeQueueNums first, and readQueueNums once "
        "consumerProgress shows no difference in the last queues"
    )
    return f"{' and '.join(hidden)}; {advice}"


def is_hiding(before: TopicConfig | None, after: TopicConfig, behind: Sequence[Behind]) -> bool:
    """Tell whether a change hides messages that consumers could read, now or later.

    As in RocketMQ, a topic may be created with queues that are written but not read; its creator
    gets a warning.
    """
    if before is None or after.read_queue_nums >= before.read_queue_nums:
        return False
    return bool(behind) or after.write_queue_nums > after.read_queue_nums


def queues_text(queue_ids: Iterable[int]) -> str:
    """Return queue numbers as text, consecutive ones as a range: ``queues 1, 4 to 7``."""
    runs: list[list[int]] = []
    for queue_id in sorted(queue_ids):
        if runs and runs[-1][-1] == queue_id - 1:
            runs[-1].append(queue_id)
        else:
            runs.append([queue_id])
    texts = [str(run[0]) if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs]
    one = len(runs) == 1 and len(runs[0]) == 1
    return f"queue{'' if one else 's'} {', '.join(texts)}"


def _unread_text(behind: Sequence[Behind]) -> str:
    totals: dict[str, int] = {}
    for each in behind:
        totals[each.group] = totals.get(each.group, 0) + each.messages
    queues = queues_text({each.queue_id for each in behind})
    if "" in totals:
        return f"no group has read the {totals['']} messages in {queues}"
    groups = [f"{group} ({totals[group]})" for group in sorted(totals)]
    more = f" and {len(groups) - _GROUPS_NAMED_MAX} more" if len(groups) > _GROUPS_NAMED_MAX else ""
    named = ", ".join(groups[:_GROUPS_NAMED_MAX])
    return f"messages in {queues} have not been consumed by {named}{more}"
