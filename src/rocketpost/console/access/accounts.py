"""Logins, by the console's own users or by those of brokers with access control."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rocketpost.client.admin import AdminClient
from rocketpost.client.credentials import Credentials
from rocketpost.console.access.invitations import Invitations
from rocketpost.console.access.passwords import hash_password_blocking, is_password_blocking
from rocketpost.console.access.sessions import Sessions
from rocketpost.console.access.throttle import LoginThrottle
from rocketpost.console.access.users import Role, User, UserFile
from rocketpost.errors import ConfigError, Fault, NoPermission, RocketpostError

if TYPE_CHECKING:
    from rocketpost.console.clusters import Cluster

logger = logging.getLogger(__name__)


class Accounts:
    """Users, sessions and invitations of a console. Belongs to the event loop.

    Args:
        path: The file of users.
        clock: The time in seconds, which never goes back.
    """

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.users = UserFile(path)
        self.sessions = Sessions(clock)
        self.invitations = Invitations(clock)
        self.throttle = LoginThrottle(clock)

    async def check_password(self, name: str, password: str) -> User | None:
        """Return the user of the console with a name and a password, or None."""
        user = self.users.find(name)
        kept = None if user is None else user.password
        matches = await asyncio.to_thread(is_password_blocking, password, kept)
        return user if matches else None

    async def make_user(self, user: User, password: str) -> None:
        """Add a user, or give one a new password and role; their sessions end.

        Raises:
            OSError: The file of users cannot be written.
        """
        kept = await asyncio.to_thread(hash_password_blocking, password)
        self.users.put(
            User(name=user.name, role=user.role, reads_bodies=user.reads_bodies, password=kept)
        )
        self.sessions.end_of_user(user.name)
        await asyncio.to_thread(self.users.save_blocking, self.users.list())

    async def remove_user(self, name: str) -> None:
        """Remove a user and end their sessions.

        Raises:
            OSError: The file of users cannot be written.
        """
        self.users.remove(name)
        self.sessions.end_of_user(name)
        await asyncio.to_thread(self.users.save_blocking, self.users.list())


async def check_broker_user(
    clusters: Sequence[Cluster], name: str, password: str
) -> tuple[User, Credentials] | None:
    """Return the user of the brokers with a name and a password, or None.

    The password signs a request, so a broker of each cluster judges it. A super user of all
    clusters that know the user becomes an administrator; for others the brokers decide on every
    request, which is signed with their keys.

    Raises:
        RocketpostError: Some cluster could not be asked, and no other one knows the user.
    """
    try:
        credentials = Credentials(name, password)
    except ConfigError:
        return None
    roles: list[Role] = []
    problem: RocketpostError | None = None
    for cluster in clusters:
        snapshot = await cluster.collector.fresh_snapshot()
        address = next((each.address for each in snapshot.brokers if each.is_master), None)
        if address is None:
            problem = RocketpostError(snapshot.problem or "there is no broker")
            continue

        async def judge(client: AdminClient, address: str = address) -> Role:
            return await _judge(client, address, name)

        try:
            roles.append(await cluster.login(cluster.with_credentials(credentials), judge))
        except NoPermission as error:
            logger.info("login refused: user=%s cluster=%s reason=%s", name, cluster.name, error)
        except RocketpostError as error:
            problem = error
    if roles:
        return User(name=name, role=min(roles).word, reads_bodies=True), credentials
    if problem is not None:
        raise problem
    return None


async def _judge(client: AdminClient, address: str, name: str) -> Role:
    """Return the role of the user who signs a client's requests.

    Raises:
        NoPermission: The signature is wrong, or the broker has no access control.
    """
    try:
        found = await client.access.user(address, name)
    except NoPermission as error:
        # A missing right proves that the signature is right; a wrong one has another text.
        if "has no permission" in str(error) or "access denied" in str(error).lower():
            return Role.OPERATOR
        raise
    except Fault as error:
        raise NoPermission(f"the broker has no users: {error}") from error
    if found is None:
        raise NoPermission("the broker has no access control")
    return Role.ADMIN if (found.user_type or "").lower() == "super" else Role.OPERATOR
