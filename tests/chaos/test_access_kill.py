"""Users and rules change while the broker is killed: an answered change stays, none gets wider."""

from __future__ import annotations

import asyncio
import contextlib
import random
from pathlib import Path
from typing import Final

import pytest

from integration.up_group import UpGroup
from rocketpost.access.info import AclInfo, EntryInfo, PolicyInfo, UserInfo
from rocketpost.client import ClientConfig, Credentials, RocketpostError
from rocketpost.client.admin import AdminClient
from rocketpost.settings import format_properties
from rocketpost.testing.cluster import Cluster

KILLS: Final = 12
KILLS_OF_LEADERS: Final = 5
USERS: Final = 3
SETTINGS: Final = {
    "authenticationEnabled": "true",
    "authorizationEnabled": "true",
    "initAuthenticationUser": '{"username":"root","password":"root-secret"}',
}
ROOT: Final = Credentials("root", "root-secret")
State = tuple[str, tuple[str, ...]] | None
"""Password and resources of a user; None if there is no such user."""


class Changer:
    """Changes one user over and over, and knows which states it may be in."""

    def __init__(self, name: str, rng: random.Random) -> None:
        self.name = name
        self._rng = rng
        self._number = 0
        self.possible: list[State] = [None]

    async def run(self, admin: AdminClient, address: str) -> None:
        while True:
            state = self.possible[0]
            self._number += 1
            if state is None:
                wanted: State = (f"p{self._number}", ())
                change = admin.access.create_user(
                    address, UserInfo(username=self.name, password=wanted[0])
                )
            elif self._rng.random() < 0.2:
                wanted, change = None, admin.access.delete_user(address, self.name)
            elif state[1] and self._rng.random() < 0.4:
                gone = self._rng.choice(state[1])
                wanted = (state[0], tuple(each for each in state[1] if each != gone))
                change = admin.access.delete_rules(address, f"User:{self.name}", gone)
            elif self._rng.random() < 0.3:
                wanted = (f"p{self._number}", state[1])
                user = UserInfo(username=self.name, password=wanted[0])
                change = admin.access.update_user(address, user)
            else:
                more = f"Topic:t{self._number}"
                wanted = (state[0], tuple(sorted({*state[1], more})))
                entry = EntryInfo(resource=more, actions=["Pub"], decision="Allow")
                rules = AclInfo(subject=f"User:{self.name}", policies=[PolicyInfo(entries=[entry])])
                change = admin.access.put_rules(address, rules)
            self.possible = [state, wanted]
            await change  # if the broker dies meanwhile, both states are possible
            self.possible = [wanted]

    async def check(self, admin: AdminClient, address: str) -> None:
        user = await admin.access.user(address, self.name)
        found: State = None
        if user is not None:
            rules = await admin.access.rules(address, f"User:{self.name}")
            policies = [] if rules is None else rules.policies or []
            entries = [entry for policy in policies for entry in policy.entries or ()]
            found = (user.password or "", tuple(sorted(entry.resource or "" for entry in entries)))
        assert found in self.possible, (self.name, found, self.possible)
        self.possible = [found]


async def test_kills_while_users_and_rules_change(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    changers = [Changer(f"user-{n}", random.Random(rng.random())) for n in range(USERS)]
    made = 0
    with Cluster(tmp_path, settings=SETTINGS) as cluster:
        [broker], [address] = cluster.brokers, cluster.broker_addresses
        for _ in range(KILLS):
            config = ClientConfig(
                name_servers=cluster.addresses, credentials=ROOT, call_timeout=10.0
            )
            async with AdminClient(config=config) as admin:
                for changer in changers:
                    await changer.check(admin, address)
                work = [asyncio.create_task(each.run(admin, address)) for each in changers]
                await asyncio.sleep(rng.uniform(0.05, 0.8))
                broker.kill()
                done = await asyncio.gather(*work, return_exceptions=True)
                assert all(isinstance(each, RocketpostError) for each in done), done
            made = sum(changer._number for changer in changers)
            await asyncio.to_thread(broker.start)
    assert made > KILLS, "too few changes to mean anything"


class GuardedGroup(UpGroup):
    """A group of three with access control."""

    def __init__(self, folder: Path) -> None:
        key = folder / "secret.key"
        key.write_text("5a" * 32)
        key.chmod(0o600)
        more = {
            "innerClientAuthenticationCredentials": (
                '{"accessKey":"servers","secretKey":"servers-secret"}'
            ),
            "authSecretKeyFile": str(key),
        }
        path = folder / "broker.conf"
        path.write_text(format_properties({**SETTINGS, **more}))
        super().__init__(folder / "data", "-c", str(path))

    def admin(self) -> AdminClient:
        config = ClientConfig(name_servers=self.address, credentials=ROOT, call_timeout=10.0)
        return AdminClient(config=config)

    async def leading(self, but: str = "") -> str:
        """Return the address of the leader that changes users and rules now."""
        async with asyncio.timeout(60), self.admin() as admin:
            while True:
                with contextlib.suppress(RocketpostError):
                    info = await admin.cluster.info()
                    found = info.broker_addr_table["broker-a"].broker_addrs.get(0, "")
                    if found not in ("", but):
                        await admin.access.users(found)
                        return found
                await asyncio.sleep(0.05)


@pytest.mark.timeout(1800)
async def test_leaders_are_killed_while_users_and_rules_change(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    changers = [Changer(f"user-{n}", random.Random(rng.random())) for n in range(USERS)]
    group = GuardedGroup(tmp_path)
    with contextlib.ExitStack() as stack:
        stack.callback(group.server.kill)
        await asyncio.to_thread(group.server.start)
        address = await group.leading()
        for _ in range(KILLS_OF_LEADERS):
            async with group.admin() as admin:
                for changer in changers:
                    await changer.check(admin, address)
                before = sum(changer._number for changer in changers)
                work = [asyncio.create_task(each.run(admin, address)) for each in changers]
                await asyncio.sleep(rng.uniform(0.5, 2.0))
                number = next(n for n in range(3) if group.client_address(n) == address)
                await group.kill(number)
                done = await asyncio.gather(*work, return_exceptions=True)
                assert all(isinstance(each, RocketpostError) for each in done), done
            made = sum(changer._number for changer in changers) - before
            assert made > USERS, "too few changes to mean anything"
            address = await group.leading(but=address)
            await group.wait_restarted(number)
        async with group.admin() as admin:
            for changer in changers:
                await changer.check(admin, address)
