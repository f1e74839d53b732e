"""All links of a member: they follow the members of the group while it runs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping

from rocketpost.codec.group.frames import Framed
from rocketpost.codec.group.hello import Answer, Hello, History
from rocketpost.server.group.incoming import IncomingLinks, TakeMessage
from rocketpost.server.group.link_values import Framing, Protection, Seat
from rocketpost.server.group.outgoing import OutgoingLink

logger = logging.getLogger(__name__)


class GroupLinks:
    """The links to and from all other members. Owned by the loop.

    Args:
        seat: This member's place in the group.
        framing: Encodes and decodes messages.
        on_message: Takes each message of a peer.
        on_up: Called with a peer's id when messages can be sent to it.
        on_down: Called with a peer's id when a connection that was up is lost.
        on_history: Called whenever a peer is met, with its id, what it has on its disk, and what it
            remembers of this member.
        protection: TLS and logins; none if None.
    """

    def __init__(
        self,
        seat: Seat,
        *,
        framing: Framing,
        on_message: TakeMessage,
        on_up: Callable[[str], None],
        on_down: Callable[[str], None],
        on_history: Callable[[str, History, History], None],
        protection: Protection | None = None,
    ) -> None:
        self._seat = seat
        self._protection = protection or Protection.of_group(seat.group)
        self._framing = framing
        self._on_up = on_up
        self._on_down = on_down
        self._on_history = on_history
        self.incoming = IncomingLinks(
            seat=seat,
            peers=(),
            framing=framing,
            on_message=on_message,
            on_hello=self._take_hello,
            protection=self._protection,
        )
        """The connections by which peers send messages."""
        self._outgoing: dict[str, OutgoingLink] = {}
        self._tasks: asyncio.TaskGroup | None = None
        self._work: dict[str, asyncio.Task[None]] = {}
        self.client_addresses = {seat.node: seat.address}
        """Addresses at which clients reach members, by id, as far as known."""

    def __iter__(self) -> Iterator[OutgoingLink]:
        return iter(self._outgoing.values())

    def get(self, peer: str) -> OutgoingLink | None:
        """Return the link to a peer, if it is a member."""
        return self._outgoing.get(peer)

    def is_up(self, peer: str) -> bool:
        """Tell whether messages can be sent to a peer."""
        link = self._outgoing.get(peer)
        return link is not None and link.is_up

    @property
    def problems(self) -> dict[str, str]:
        """Reasons why peers cannot be reached, by peer."""
        return {link.peer: link.problem for link in self if link.problem}

    async def run(self) -> None:
        """Keep the connections until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            for link in self:
                self._start(link)
            await asyncio.Event().wait()

    def set_members(self, addresses: Mapping[str, str]) -> None:
        """Link up with these members, and with no others.

        Args:
            addresses: Host and port of each member by id, this one perhaps included.
        """
        others = {peer: at for peer, at in addresses.items() if peer != self._seat.node}
        for peer, link in list(self._outgoing.items()):
            if others.get(peer) != link.address:
                self._remove(peer)
        for peer, address in others.items():
            if peer not in self._outgoing:
                link = OutgoingLink(
                    peer,
                    address,
                    seat=self._seat,
                    framing=self._framing,
                    on_up=self._take_answer,
                    on_down=self._on_down,
                    protection=self._protection,
                )
                self._outgoing[peer] = link
                self._start(link)
        self.incoming.set_peers(others)

    def send(self, peer: str, message: Framed, body: memoryview | None = None) -> bool:
        """Send a message to a peer; tells whether it was reached and had room."""
        link = self._outgoing.get(peer)
        return link is not None and link.send(message, body)

    def drop_log_bytes(self) -> None:
        """Close the connections that have bytes of the log to send."""
        for link in self:
            link.drop_log_bytes()

    def close(self) -> None:
        """Stop listening and end the connections of peers."""
        self.incoming.close()

    def _start(self, link: OutgoingLink) -> None:
        if self._tasks is not None:
            name = f"link to {link.peer}"
            self._work[link.peer] = self._tasks.create_task(link.run(), name=name)

    def _remove(self, peer: str) -> None:
        del self._outgoing[peer]
        logger.info("member is not linked any more: peer=%s", peer)
        task = self._work.pop(peer, None)
        if task is not None:
            task.cancel()

    def _take_hello(self, hello: Hello) -> None:
        self.client_addresses[hello.sender] = hello.address
        self._on_history(hello.sender, hello.history, hello.remembered)

    def _take_answer(self, peer: str, answer: Answer) -> None:
        self.client_addresses[peer] = answer.address
        self._on_history(peer, answer.history, answer.remembered)
        self._on_up(peer)
