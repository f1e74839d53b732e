"""The broker's own messages as pending sends, and waits for slaves."""

from __future__ import annotations

import asyncio
from typing import ClassVar

from rocketpost.codec.codes import ResponseCode
from rocketpost.errors import StoreError
from rocketpost.model.ids import Position
from rocketpost.server.writer.pending_sends import PendingSend
from rocketpost.store.draft import Appended

Stored = asyncio.Future[list[Appended]]
"""Done when the broker's own messages are visible: as safe as this broker alone can make them."""


class InternalSend(PendingSend, gc=False):
    """A send of the broker's own messages."""

    times_out: ClassVar[bool] = False
    awaits_slaves: ClassVar[bool] = False

    done: Stored


class SlaveTicket(InternalSend, gc=False):
    """A wait until slaves have messages that are already visible."""

    awaits_slaves: ClassVar[bool] = True

    position: Position

    @property
    def end(self) -> Position:
        """The position that enough slaves must have."""
        return self.position


class InternalSends:
    """The submitter of the broker's own messages."""

    def acknowledge(self, sends: list[InternalSend]) -> None:
        """Report that they are stored."""
        for send in sends:
            if not send.done.done():  # the caller may have given up
                send.done.set_result(send.stored)

    def answer_late(self, sends: list[InternalSend], status: ResponseCode) -> None:
        """End a wait for slaves; a wait for the disk has no deadline here."""
        assert status is not ResponseCode.FLUSH_DISK_TIMEOUT
        self.acknowledge(sends)

    def refuse(self, sends: list[InternalSend], error: StoreError) -> None:
        """Report that they are not stored, or may be lost."""
        for send in sends:
            if not send.done.done():
                send.done.set_exception(error)

    refuse_unwritten = refuse
