"""Bytes of a leader's log on their way into a member's log."""

from __future__ import annotations

from typing import NamedTuple

from rocketpost.raft.actions import Accept, Action
from rocketpost.raft.messages import Append, Message


class Chunk(NamedTuple):
    """Bytes of a leader's log that are to be appended."""

    accept: Accept
    data: bytes


def with_bytes(action: Action, message: Message, body: bytes) -> Action | Chunk:
    """Return an action, together with the bytes of its message if it asks to append them."""
    if not isinstance(action, Accept):
        return action
    assert isinstance(message, Append)
    begin, end = action.start - message.prev, action.end - message.prev
    return Chunk(action, body if end - begin == len(body) else body[begin:end])
