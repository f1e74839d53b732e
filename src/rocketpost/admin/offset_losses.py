"""Messages that a group skips or gets again when its offsets are moved."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from rocketpost.client.admin import AdminClient
from rocketpost.client.consumer.offset_calls import OffsetCalls
from rocketpost.diagnosis.concurrency import map_concurrently
from rocketpost.model.route import MessageQueue, TopicRoute


class Move(NamedTuple):
    """An offset of a group in one queue, before and after."""

    before: int
    after: int


Moves = Mapping[MessageQueue, Move]


def move_losses(group: str, topic: str, moves: Moves) -> list[str]:
    """Return the losses that moved offsets cause. Pure."""
    ahead = [move.after - move.before for move in moves.values() if move.after > move.before]
    back = [move.before - move.after for move in moves.values() if move.after < move.before]
    losses = []
    if ahead:
        losses.append(
            f"the group {group} skips {sum(ahead)} messages of {topic} that it has not consumed, "
            f"in {len(ahead)} queues"
        )
    if back:
        losses.append(
            f"the group {group} is given {sum(back)} messages of {topic} again, "
            f"in {len(back)} queues"
        )
    return losses


async def reset_moves(
    admin: AdminClient, group: str, topic: str, when_ms: int, *, force: bool
) -> Moves:
    """Return the moves of a reset to a time; a negative time is the end of each queue.

    Args:
        admin: The client.
        group: The group.
        topic: The topic.
        when_ms: The group continues with the first message stored at this time or later.
        force: Whether the group may also move ahead.

    Raises:
        RouteNotFound: The topic is unknown.
    """
    calls = OffsetCalls(admin.session)

    async def move(queue: MessageQueue) -> Move | None:
        before = await calls.group_offset(group, queue)
        if before is None:
            return None  # The group has no offset there, so it loses nothing.
        if when_ms < 0:
            return Move(before, await calls.max_offset(queue))
        return Move(before, await calls.search_offset(queue, when_ms))

    queues = _queues(await admin.cluster.route(topic), topic)
    moves = zip(queues, await map_concurrently(queues, move), strict=True)
    return {
        queue: moved
        for queue, moved in moves
        if moved is not None and (force or moved.after < moved.before)
    }


async def queue_moves(admin: AdminClient, group: str, queue: MessageQueue, offset: int) -> Moves:
    """Return the move of a group that is set to an offset in one queue."""
    calls = OffsetCalls(admin.session)
    before = await calls.group_offset(group, queue)
    if before is None:
        return {}
    return {queue: Move(before, min(offset, await calls.max_offset(queue)))}


async def clone_moves(admin: AdminClient, source: str, target: str, topic: str) -> Moves:
    """Return the moves of a group that gets the offsets of another group.

    Raises:
        RouteNotFound: The topic is unknown.
    """
    calls = OffsetCalls(admin.session)

    async def move(queue: MessageQueue) -> Move | None:
        before = await calls.group_offset(target, queue)
        after = await calls.group_offset(source, queue)
        return None if before is None or after is None else Move(before, after)

    queues = _queues(await admin.cluster.route(topic), topic)
    moves = zip(queues, await map_concurrently(queues, move), strict=True)
    return {queue: moved for queue, moved in moves if moved is not None}


def _queues(route: TopicRoute, topic: str) -> list[MessageQueue]:
    masters = {broker.broker_name for broker in route.broker_datas if broker.master}
    return [
        MessageQueue(data.broker_name, queue_id, topic)
        for data in route.queue_datas
        if data.broker_name in masters
        for queue_id in range(data.read_queue_nums)
    ]
