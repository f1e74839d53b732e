"""Logins that the lanes know: senders whose signatures the lanes verify themselves.

With access control on, a lane takes a request only if the gate would admit it. So that it need not
ask about every request, each connection has the login that was used on it last:

    user      the only one whose requests the lanes take from this connection
    secret    as the hash states that a signature begins with; every request is verified
    topics    those that the user may send to, from this address
    pulls     the shapes whose topic and group the user may read, from this address

**Invariants:** a login is of one version of the table of users and rules. When the table changes,
the login is no longer used, and the next request is served in the ordinary way. A right is entered
here only after the gate was asked about this user, this address and this resource. A request that
is unknown or wrong is served in the ordinary way, which refuses, records, counts and delays it.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from rocketpost.broker.pull.known_pulls import KnownPull
from rocketpost.codec.command import Command
from rocketpost.kernel.pull_lane import PullLane
from rocketpost.kernel.signatures import Signer
from rocketpost.server.access.gate import Caller, Gate
from rocketpost.server.routes.access import PUB, Access, topic_need
from rocketpost.transport.connection import Connection

PULLS_MAX: Final = 1024
"""Most shapes of pulls that one login remembers; then all are forgotten."""

_NO_COMMAND: Final = Command()


class KnownLogin:
    """The login of one connection, as of one version of users and rules."""

    __slots__ = ("name", "pulls", "revision", "signer")

    def __init__(self, name: str, secret: str, revision: int) -> None:
        self.name = name
        self.signer = Signer(name.encode(), secret.encode())
        self.revision = revision
        self.pulls: set[KnownPull] = set()
        """The pulls that the user may make."""


class Logins:
    """Knows which requests of a connection the gate would admit. Owned by the loop.

    Args:
        gate: Decides.
        codes: The requests that the lane takes. If the gate does not look at the users of some of
            them, the lane takes none: who sends them would not be known.
    """

    def __init__(self, gate: Gate, codes: Collection[int]) -> None:
        self._gate = gate
        self._is_on = gate.open_codes.isdisjoint(codes)

    def signer_of(self, connection: Connection) -> Signer | None:
        """Return the user of a connection; None if not known, or not of this version."""
        known: KnownLogin | None = connection.known_login
        if known is None or known.revision != self._gate.revision or not self._is_on:
            return None
        return known.signer

    def note_send(
        self, connection: Connection, command: Command, topic: str, number: int, epoch: int
    ) -> None:
        """Let the lane take the next sends of a user to a topic, if the gate would admit them.

        Args:
            connection: The connection of the user.
            command: A send that the gate has admitted.
            topic: The topic.
            number: The number of the topic in the lane's table.
            epoch: The epoch of these numbers.
        """
        caller: Caller | None = command.caller
        if caller is None or caller.host != connection.peer[0]:
            return  # nobody, or a client whose requests another member passes on
        if not self._may(caller._replace(needs=(topic_need(topic, (PUB,)),))):
            return
        known = self._find(connection, caller.name)
        if known is not None:
            known.signer.allow(number, epoch)

    def may_pull(
        self, connection: Connection, pull: KnownPull | None, lane: PullLane, access: Access
    ) -> bool:
        """Tell whether the gate would admit the pull that a lane has split.

        Args:
            connection: The connection of the pull.
            pull: The meaning of its shape; None if it is not known.
            lane: Has the numbers and the signature of the pull.
            access: The rights that pulls need.
        """
        if pull is None or not pull.shape.user or not self._is_on:
            return False
        known = self._find(connection, pull.shape.user)
        if known is None:
            return False
        before, between, after = pull.shape.texts
        text = b"%b%d%b%d%b" % (before, lane.commit_offset, between, lane.queue_offset, after)
        if not known.signer.is_signed(text, lane.signature):
            return False
        if pull not in known.pulls:
            needs = access.needs(_NO_COMMAND, pull.shape.request)
            if not self._may(Caller(known.name, connection.peer[0], needs)):
                return False
            if len(known.pulls) == PULLS_MAX:
                known.pulls.clear()
            known.pulls.add(pull)
        return True

    def _may(self, caller: Caller) -> bool:
        return not self._gate.authorises or self._gate.problem(caller) is None

    def _find(self, connection: Connection, name: str) -> KnownLogin | None:
        """Return the login of a connection, which is that of ``name`` from now on."""
        known: KnownLogin | None = connection.known_login
        revision = self._gate.revision
        if known is not None and known.name == name and known.revision == revision:
            return known
        user = self._gate.login_user(connection, name)
        if user is None:
            return None
        known = connection.known_login = KnownLogin(name, user.secret, revision)
        return known
