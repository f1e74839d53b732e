"""The members of a group with their addresses, as the records of the log state them.

Raft knows members by their ids. Their addresses are in the same records, and the newest ones are
kept with the promises of the member, because old segments of the log are deleted. A new group
begins with the members that its settings name; from then on the log decides.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence

from rocketpost.errors import CorruptRecord, ReplicationError
from rocketpost.model.members import Configuration, Member
from rocketpost.raft.messages import MemberRecord, Members
from rocketpost.server.settings.group import GroupConfig
from rocketpost.store.member.group_records import configurations_in
from rocketpost.store.member.member_store import MemberStore

logger = logging.getLogger(__name__)


def initial_members(config: GroupConfig) -> Configuration:
    """Return the configuration with which every member of a new group begins."""
    members = sorted(config.members.values())
    return Configuration(0, tuple(Member(peer.node, peer.address) for peer in members))


def record_of(configuration: Configuration) -> MemberRecord:
    """Return a configuration as Raft knows it, without addresses."""
    members = configuration.members
    return MemberRecord(
        configuration.position,
        Members(
            frozenset(each.name for each in members if each.is_voter),
            frozenset(each.name for each in members if not each.is_voter),
        ),
    )


class Roster:
    """The configurations of the log. Owned by the loop.

    Args:
        config: The group as the settings name it.
        store: This member's store.
    """

    def __init__(self, config: GroupConfig, store: MemberStore) -> None:
        self._store = store
        self._configured = {node: peer.address for node, peer in config.members.items()}
        found = [_with_settings(each, self._configured) for each in store.state.configurations]
        self._configurations: list[Configuration] = found or [initial_members(config)]
        self._is_saved = bool(found)
        self._added: dict[str, str] = {}
        self._saving = asyncio.Lock()
        self._settles_at: int | None = None
        self._warn(config)

    @property
    def configurations(self) -> Sequence[Configuration]:
        """All known configurations, oldest first."""
        return self._configurations

    @property
    def records(self) -> list[MemberRecord]:
        """The configurations as Raft knows them."""
        return [record_of(each) for each in self._configurations]

    @property
    def addresses(self) -> dict[str, str]:
        """Host and port of each member of the newest configuration, by id."""
        return {each.name: each.address for each in self._configurations[-1].members}

    def find_linked(self, commit: int) -> dict[str, str]:
        """Host and port of each member to link up with, by id.

        These are the members, and those whose removal is not committed yet: a leader that is to be
        removed commits its removal, and must hear that the others have it.
        """
        later = [each for each in self._configurations if each.position > commit]
        self._settles_at = later[-1].position if later else None
        return {
            each.name: each.address
            for configuration in (self.at(commit), *later)
            for each in configuration.members
        }

    def is_settled(self, commit: int) -> bool:
        """Tell whether a change is committed that was open when :meth:`find_linked` was called."""
        return self._settles_at is not None and self._settles_at <= commit

    def at(self, position: int) -> Configuration:
        """Return the configuration that is valid at a position, or the oldest that is known."""
        known = [each for each in self._configurations if each.position <= position]
        return known[-1] if known else self._configurations[0]

    def expect(self, node: str, address: str) -> None:
        """Note the address of a member that is about to be added."""
        self._added[node] = address

    def describe(self, members: Members) -> tuple[Member, ...]:
        """Return members with their addresses, for a record of the log.

        Raises:
            ReplicationError: An address is not known.
        """
        known = self.addresses | self._added
        unknown = sorted((members.voters | members.learners) - known.keys())
        if unknown:
            raise ReplicationError(f"the address of {', '.join(unknown)} is not known")
        return tuple(
            Member(name, known[name], is_voter)
            for is_voter, names in ((True, members.voters), (False, members.learners))
            for name in sorted(names)
        )

    def note(self, found: Iterable[Configuration]) -> None:
        """Add configurations that were appended to the log."""
        for configuration in found:
            if configuration.position > self._configurations[-1].position:
                self._configurations.append(configuration)
                self._is_saved = False
                logger.info("members: %s", _text_of(configuration))

    def note_bytes(self, data: bytes, start: int, end: int) -> None:
        """Add the configurations that bytes of the log state, up to the position ``end``."""
        try:
            self.note(each for each in configurations_in(data, start) if each.position <= end)
        except CorruptRecord as error:  # it was checked before it was appended
            logger.error("members cannot be read: reason=%s", error)

    def cut(self, position: int) -> None:
        """Note that the log was cut."""
        kept = [each for each in self._configurations if each.position <= position]
        if kept and len(kept) < len(self._configurations):
            self._configurations = kept
            self._is_saved = False
            logger.info("members: %s", _text_of(kept[-1]))

    async def save(self) -> None:
        """Make the newest configurations durable.

        Raises:
            StoreError: They cannot be saved.
        """
        async with self._saving:
            while not self._is_saved:
                self._is_saved = True
                newest = tuple(self._configurations)
                await asyncio.to_thread(self._store.save_members_blocking, newest)

    def _warn(self, config: GroupConfig) -> None:
        actual = self.addresses
        if actual != self._configured:
            logger.warning(
                "dLegerPeers does not name the members of the group: group=%s members=%s "
                "dLegerPeers=%s; the log of the group counts. Members are changed by 'rocketpost "
                "group'", config.group, _addresses_text(actual), _addresses_text(self._configured),
            )  # fmt: skip


def _with_settings(configuration: Configuration, addresses: dict[str, str]) -> Configuration:
    """Return the members of a new group with the addresses that the settings name now."""
    if configuration.position > 0:
        return configuration
    members = tuple(
        each._replace(address=addresses.get(each.name, each.address))
        for each in configuration.members
    )
    return Configuration(0, members)


def _text_of(configuration: Configuration) -> str:
    return ", ".join(
        f"{each.name} at {each.address}{'' if each.is_voter else ' (learner)'}"
        for each in configuration.members
    )


def _addresses_text(addresses: dict[str, str]) -> str:
    return ";".join(f"{node}-{address}" for node, address in sorted(addresses.items()))
