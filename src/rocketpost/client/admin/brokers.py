"""Administration of single brokers: settings, runtime values, statistics, cleaning."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from rocketpost.client.session import Session
from rocketpost.codec.bodies.damage import DamageList
from rocketpost.codec.bodies.group_status import (
    GroupStatus,
    SyncState,
    decode_group_status,
    decode_sync_states,
)
from rocketpost.codec.bodies.leniency import decode_body
from rocketpost.codec.bodies.offset import BrokerConsumeState, decode_broker_consume_state
from rocketpost.codec.bodies.producers import ProducerStates, decode_producer_states
from rocketpost.codec.bodies.stats import (
    EpochList,
    QueueEntries,
    ReplicationState,
    StatsBody,
    decode_key_values,
)
from rocketpost.codec.codes import RequestCode
from rocketpost.codec.headers.admin import (
    GetDamage,
    QueryQueue,
    ResetMasterFlushed,
    StatsRequest,
)
from rocketpost.codec.headers.broker_group import (
    ChangeGroup,
    ControllerMetadata,
    ElectMaster,
    ElectMasterResponse,
)
from rocketpost.codec.headers.client import GetProducerStates
from rocketpost.codec.headers.offset import BrokerConsumeStats
from rocketpost.settings import format_properties, parse_properties

_CLEAN_SECONDS = 60.0
_CHANGE_SECONDS = 15.0


class BrokerAdmin:
    """Sends requests about single brokers."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def config(self, address: str) -> dict[str, str]:
        """Return the settings of a broker."""
        response = await self._session.call(address, RequestCode.GET_BROKER_CONFIG)
        return parse_properties(response.body.decode("utf-8", "replace"))

    async def update_config(self, address: str, values: Mapping[str, str]) -> None:
        """Change settings of a broker while it runs."""
        body = format_properties(values).encode()
        await self._session.call(address, RequestCode.UPDATE_BROKER_CONFIG, body=body)

    async def runtime(self, address: str) -> dict[str, str]:
        """Return the runtime values of a broker."""
        response = await self._session.call(address, RequestCode.GET_BROKER_RUNTIME_INFO)
        return decode_key_values(response.body)

    async def stats(self, address: str, name: str, key: str) -> StatsBody:
        """Return one statistic of a broker, such as ``TOPIC_PUT_NUMS`` of a topic."""
        header = StatsRequest(stats_name=name, stats_key=key)
        response = await self._session.call(address, RequestCode.VIEW_BROKER_STATS_DATA, header)
        return decode_body(response.body, StatsBody)

    async def consume_stats(
        self, address: str, *, orderly: bool = False, timeout: float | None = None
    ) -> BrokerConsumeState:
        """Return the progress of every group of a broker; this may take a while."""
        header = BrokerConsumeStats(is_order=orderly)
        response = await self._session.call(
            address, RequestCode.GET_BROKER_CONSUME_STATS, header, timeout=timeout
        )
        return decode_broker_consume_state(response.body)

    async def replication(self, address: str) -> ReplicationState:
        """Return the state of a broker's replicas."""
        response = await self._session.call(address, RequestCode.GET_BROKER_HA_STATUS)
        return decode_body(response.body, ReplicationState)

    async def reset_master_flushed(self, address: str, position: int) -> None:
        """Set the master's flushed position that a slave keeps; a master ignores it."""
        header = ResetMasterFlushed(master_flush_offset=position)
        await self._session.call(address, RequestCode.RESET_MASTER_FLUSH_OFFSET, header)

    async def epochs(self, address: str) -> EpochList:
        """Return the epochs of a broker's log.

        Raises:
            ServerError: The broker is not under a controller.
        """
        response = await self._session.call(address, RequestCode.GET_BROKER_EPOCH_CACHE)
        return decode_body(response.body, EpochList)

    async def group_status(self, address: str) -> GroupStatus:
        """Return a member's view of its group.

        Raises:
            RequestCodeNotSupported: The broker is in no group.
        """
        response = await self._session.call(address, RequestCode.GET_GROUP_STATUS)
        return decode_group_status(response.body)

    async def change_group(
        self, address: str, action: str, member: str = "", member_address: str = ""
    ) -> GroupStatus:
        """Hand over leadership, or change the members of a group by one; at its leader.

        Args:
            address: The leader's address for clients.
            action: ``transfer``, ``add``, ``promote`` or ``remove``.
            member: Id of the member.
            member_address: For ``add``: host and port at which it listens to the others.
        """
        header = ChangeGroup(action=action, member=member, address=member_address)
        response = await self._session.call(
            address, RequestCode.CHANGE_GROUP, header, timeout=_CHANGE_SECONDS
        )
        return decode_group_status(response.body)

    async def controller_metadata(self, address: str) -> ControllerMetadata:
        """Return who leads the controllers, or the group of a broker."""
        response = await self._session.call(address, RequestCode.CONTROLLER_GET_METADATA_INFO)
        return response.read(ControllerMetadata)

    async def sync_states(self, address: str, names: Sequence[str]) -> dict[str, SyncState]:
        """Return which replicas of brokers are in sync, by the brokers' names."""
        body = msgspec.json.encode(list(names))
        response = await self._session.call(
            address, RequestCode.CONTROLLER_GET_SYNC_STATE_DATA, body=body
        )
        return decode_sync_states(response.body).replicas_info_table

    async def elect_master(
        self, address: str, *, cluster: str, name: str, broker_id: int
    ) -> ElectMasterResponse:
        """Let the broker of an id lead."""
        header = ElectMaster(
            cluster_name=cluster, broker_name=name, broker_id=broker_id, designate_elect=True
        )
        response = await self._session.call(
            address, RequestCode.CONTROLLER_ELECT_MASTER, header, timeout=_CHANGE_SECONDS
        )
        return response.read(ElectMasterResponse)

    async def producer_states(
        self, address: str, *, producer_id: str | None = None, count_max: int = 100
    ) -> ProducerStates:
        """Return a broker's state of idempotent producers, most recently active first."""
        header = GetProducerStates(producer_id=producer_id, count_max=count_max)
        response = await self._session.call(address, RequestCode.GET_PRODUCER_STATES, header)
        return decode_producer_states(response.body)

    async def damage(self, address: str, topic: str | None = None) -> DamageList:
        """Return the damage on a broker's disk, of one topic or of all.

        Raises:
            RequestCodeNotSupported: It is an Apache broker, which keeps no such list.
        """
        header = GetDamage(topic=topic)
        response = await self._session.call(address, RequestCode.GET_DAMAGE, header)
        return decode_body(response.body, DamageList)

    async def queue_entries(
        self, address: str, topic: str, queue_id: int, *, index: int, count: int, group: str = ""
    ) -> QueueEntries:
        """Return raw entries of a consume queue."""
        header = QueryQueue(
            topic=topic, queue_id=queue_id, index=index, count=count, consumer_group=group
        )
        response = await self._session.call(address, RequestCode.QUERY_CONSUME_QUEUE, header)
        return decode_body(response.body, QueueEntries)

    async def clean_expired_queues(self, address: str) -> None:
        """Delete the consume-queue files whose messages are gone."""
        await self._clean(address, RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE)

    async def clean_unused_topics(self, address: str) -> None:
        """Delete the queues of topics that no longer exist."""
        await self._clean(address, RequestCode.CLEAN_UNUSED_TOPIC)

    async def delete_expired_log(self, address: str) -> None:
        """Delete expired commit-log files now."""
        await self._clean(address, RequestCode.DELETE_EXPIRED_COMMITLOG)

    async def _clean(self, address: str, code: int) -> None:
        await self._session.call(address, code, timeout=_CLEAN_SECONDS)
