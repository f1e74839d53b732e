"""Requests of tools about replication: its state, and the master's flushed position at a slave."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final, Protocol

import msgspec

from rocketpost.codec.bodies.stats import (
    Epoch,
    EpochList,
    ReplicaInfo,
    ReplicationState,
    UpstreamInfo,
)
from rocketpost.codec.codes import RequestCode
from rocketpost.codec.command import Command
from rocketpost.codec.faults import InvalidParameter, ServerError
from rocketpost.codec.headers.admin import ResetMasterFlushed
from rocketpost.errors import StoreError
from rocketpost.server.handlers.replies import json_reply
from rocketpost.server.replication.status import (
    MasterStatus,
    ReplicaStatus,
    ReplicationStatus,
    SlaveStatus,
)
from rocketpost.server.routes.access import GET, UPDATE, of_cluster
from rocketpost.server.routes.route import NO_HEADER, Reply, Route, plain, waiting
from rocketpost.server.tables.broker_tables import Identity
from rocketpost.transport.connection import Connection

logger = logging.getLogger(__name__)

_NO_EPOCHS: Final = "this request only for controllerMode "
"""RocketMQ's words, which its tools print."""
_OPEN_END: Final = 2**63 - 1
"""End of the last epoch, as RocketMQ's brokers tell it."""


class Checkpoint(Protocol):
    """The part of the checkpoint that these requests use."""

    master_flushed: int
    """Position up to which a slave's master had flushed its log, as a tool or the master told."""

    def save_blocking(self) -> None:
        """Save the checkpoint.

        Raises:
            StoreError: It cannot be saved.
            OSError: It could not be written.
        """
        ...


class HaStatusHandlers:
    """Serves requests about replication. Owned by the loop.

    Args:
        end_position: Returns the end of the log.
        checkpoint: Keeps the master's flushed position.
        status: Returns the current state of replication.
        identity: The broker's names.
    """

    def __init__(
        self,
        *,
        end_position: Callable[[], int],
        checkpoint: Checkpoint,
        status: Callable[[], ReplicationStatus],
        identity: Identity,
    ) -> None:
        self._identity = identity
        self._end_position = end_position
        self._checkpoint = checkpoint
        self._status = status

    def routes(self) -> Sequence[Route]:
        """Return the routes of requests about replication."""
        return [
            plain(RequestCode.GET_BROKER_HA_STATUS, NO_HEADER, of_cluster(GET), self.show),
            waiting(
                RequestCode.RESET_MASTER_FLUSH_OFFSET,
                ResetMasterFlushed,
                of_cluster(UPDATE),
                self.reset_master_flushed,
            ),
            plain(RequestCode.GET_BROKER_EPOCH_CACHE, NO_HEADER, of_cluster(GET), self.show_epochs),
        ]

    def show(self, connection: Connection, command: Command, header: None) -> Reply:
        """Return the state of a master's slaves, or of a slave's connection to its master."""
        status = self._status()
        if isinstance(status, SlaveStatus):
            return json_reply(self._describe_slave(status))
        return json_reply(self._describe_master(status))

    async def reset_master_flushed(
        self, connection: Connection, command: Command, header: ResetMasterFlushed
    ) -> Reply:
        """Set the master's flushed position that a slave keeps; a master ignores it."""
        position = header.master_flush_offset
        if position < 0:
            raise InvalidParameter(f"masterFlushOffset={position} is not a position of a log")
        if isinstance(self._status(), SlaveStatus):
            logger.info(
                "flushed position of the master set: peer=%s from=%s to=%s",
                connection.peer_text, self._checkpoint.master_flushed, position,
            )  # fmt: skip
            self._checkpoint.master_flushed = position
            try:
                await asyncio.to_thread(self._checkpoint.save_blocking)
            except (StoreError, OSError) as error:
                raise ServerError(f"it is set, but could not be saved: {error}") from error
        return Reply()

    def show_epochs(self, connection: Connection, command: Command, header: None) -> Reply:
        """Return the terms of the log of a group's member.

        Raises:
            ServerError: The broker is in no group.
        """
        status = self._status()
        epochs = status.epochs
        if not epochs:
            raise ServerError(_NO_EPOCHS)
        end = self._end_position()
        stops = [*(start for _, start in epochs[1:]), _OPEN_END]
        return json_reply(
            EpochList(
                broker_id=status.broker_id if isinstance(status, SlaveStatus) else 0,
                broker_name=self._identity.name,
                cluster_name=self._identity.cluster,
                epoch_list=[
                    Epoch(epoch=term, start_offset=start, end_offset=stop)
                    for (term, start), stop in zip(epochs, stops, strict=True)
                ],
                max_offset=end,
            )
        )

    def _describe_master(self, status: MasterStatus) -> ReplicationState:
        end = self._end_position()
        return ReplicationState(
            ha_connection_info=[_describe(replica, end) for replica in status.replicas],
            in_sync_slave_nums=status.in_sync_count,
            master_commit_log_max_offset=end,
        )

    def _describe_slave(self, status: SlaveStatus) -> ReplicationState:
        upstream = UpstreamInfo(
            last_read_timestamp=status.last_read_ms,
            last_write_timestamp=status.last_write_ms,
            master_flush_offset=self._checkpoint.master_flushed,
            max_offset=self._end_position(),
            transferred_byte_in_second=status.bytes_per_second,
        )
        upstream.master_addr = status.master_address or msgspec.UNSET
        upstream.problem = status.problem or msgspec.UNSET
        return ReplicationState(ha_client_runtime_info=upstream, master=False)


def _describe(replica: ReplicaStatus, end: int) -> ReplicaInfo:
    info = ReplicaInfo(
        addr=replica.address,
        diff=end - replica.acknowledged,
        in_sync=replica.is_in_sync,
        slave_ack_offset=replica.acknowledged,
        transfer_from_where=replica.next_position,
        transferred_byte_in_second=replica.bytes_per_second,
    )
    if replica.broker_id is not None:
        info.broker_id = replica.broker_id
    info.problem = replica.problem or msgspec.UNSET
    return info
