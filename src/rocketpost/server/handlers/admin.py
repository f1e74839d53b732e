"""Administration of one broker: its settings, its state, its cleaning."""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Final, Protocol

from rocketpost import VERSION as OUR_VERSION
from rocketpost.broker.stats import BrokerStats, DayTotals
from rocketpost.broker.topic import TopicTable
from rocketpost.codec.bodies.stats import encode_key_values
from rocketpost.codec.codes import VERSION, RequestCode
from rocketpost.codec.command import Command, to_fields
from rocketpost.codec.faults import InvalidParameter, ServerError
from rocketpost.codec.headers.admin import ConfigResponse, StatsRequest
from rocketpost.codec.lenient_json import encode
from rocketpost.errors import ConfigError
from rocketpost.kernel import FORM
from rocketpost.model.clock import Clock
from rocketpost.model.ids import Position
from rocketpost.model.names import is_work_topic
from rocketpost.server.handlers.replies import json_reply
from rocketpost.server.routes.access import GET, UPDATE, of_cluster
from rocketpost.server.routes.route import NO_HEADER, Reply, Route, plain, waiting
from rocketpost.server.settings.live_config import LiveConfig
from rocketpost.server.writer.queue_deletion import UnfinishedDeletion
from rocketpost.server.writer.write_times import WriteTimes
from rocketpost.settings import format_properties, parse_properties
from rocketpost.transport.connection import Connection

logger = logging.getLogger(__name__)

CONFIG_BYTES_MAX: Final = 64 * 1024

# There are no thread pools here; tools still read these as numbers.
_NO_POOLS: Final = {
    f"{pool}ThreadPoolQueue{what}": "0"
    for pool in ("send", "pull", "litePull", "query", "ack")
    for what in ("Size", "Capacity", "HeadWaitTimeMills")
}
_ABSENT: Final = {
    **_NO_POOLS,
    "EndTransactionQueueSize": "0",
    "EndTransactionThreadPoolQueueCapacity": "0",
    "pageCacheLockTimeMills": "0",
    "remainTransientStoreBufferNumbs": "0",
    # Apache's exporter for Prometheus drops all values of a broker that lacks one of these.
    "dispatchMaxBuffer": "0",
    "getMessageEntireTimeMax": "0",
    "putMessageDistributeTime": WriteTimes().text(0),
    "putMessageEntireTimeMax": "0",
    "startAcceptSendRequestTimeStamp": "0",
    "timerReadBehind": "0",
    "timerOffsetBehind": "0",
    "timerCongestNum": "0",
    "timerEnqueueTps": "0.0",
    "timerDequeueTps": "0.0",
}


class QueueOfTopic(Protocol):
    """The part of a queue that names its topic."""

    @property
    def topic(self) -> str:
        """Its topic."""
        ...


class Store(Protocol):
    """The part of the store that administration uses."""

    @property
    def queues(self) -> Iterable[QueueOfTopic]:
        """Every queue."""
        ...

    @property
    def first_position(self) -> Position:
        """Position of the oldest byte."""
        ...

    @property
    def end_position(self) -> Position:
        """One past the newest byte."""
        ...

    @property
    def durable_position(self) -> Position:
        """End of the bytes that are on disk."""
        ...

    @property
    def confirmed_position(self) -> Position:
        """End of the bytes that can be read."""
        ...

    def store_time_at(self, position: int) -> int:
        """Return the store time of the record at ``position``, -1 if there is none."""
        ...


class AdminHandlers:
    """Serves requests about the broker's state.

    Args:
        commit_log_path: The directory whose partition is reported.
        extra: Returns more values for the runtime information.
    """

    def __init__(
        self,
        *,
        clock: Clock,
        stats: BrokerStats,
        store: Store,
        commit_log_path: str,
        extra: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        self._clock = clock
        self._stats = stats
        self._store = store
        self._commit_log_path = commit_log_path
        self._extra = extra

    def routes(self) -> Sequence[Route]:
        """Return the routes of requests about the broker's state."""
        return [
            waiting(
                RequestCode.GET_BROKER_RUNTIME_INFO, NO_HEADER, of_cluster(GET), self.runtime_info
            ),
            plain(
                RequestCode.VIEW_BROKER_STATS_DATA, StatsRequest, of_cluster(GET), self.stats_item
            ),
        ]

    async def runtime_info(self, connection: Connection, command: Command, header: None) -> Reply:
        """Return the broker's runtime values, all as text."""
        disk = await asyncio.to_thread(_disk_values, self._commit_log_path)
        values = {**_ABSENT, **self._counters(), **self._positions(), **disk, **self._extra()}
        return json_reply(encode_key_values(values))

    def stats_item(self, connection: Connection, command: Command, header: StatsRequest) -> Reply:
        """Return one counter over a minute, an hour and a day."""
        body = self._stats.item(header.stats_name, header.stats_key)
        if body is None:
            raise ServerError(f"nothing was counted as {header.stats_name} of {header.stats_key}")
        return json_reply(body)

    def _counters(self) -> dict[str, str]:
        stats = self._stats
        up_s = (self._clock.now_ms() - stats.started_ms) // 1000
        days, hours, minutes = up_s // 86_400, up_s // 3600 % 24, up_s // 60 % 60
        return {
            "brokerActive": "true",
            "brokerVersion": str(VERSION),
            "brokerVersionDesc": "V5_3_3-Rocketpost",
            "rocketpostVersion": OUR_VERSION,
            "kernel": FORM.word,
            "bootTimestamp": str(stats.started_ms),
            "runtime": f"[ {days} days, {hours} hours, {minutes} minutes, {up_s % 60} seconds ]",
            **_day_values("msgPutTotal", stats.put_today),
            **_day_values("msgGetTotal", stats.got_today),
            "putTps": _rates(stats.rates("put")),
            "getFoundTps": _rates(stats.rates("found")),
            "getMissTps": _rates(stats.rates("missed")),
            "getTotalTps": _rates(
                [a + b for a, b in zip(stats.rates("found"), stats.rates("missed"), strict=True)]
            ),
            "getTransferredTps": _rates(stats.rates("got")),
            # Tools up to 4.9 ask for it by this name.
            "getTransferedTps": _rates(stats.rates("got")),
            "putMessageTimesTotal": str(stats.put_count),
            "putMessageFailedTimes": str(stats.put_failures),
            "putMessageSizeTotal": str(stats.put_bytes),
            "putMessageAverageSize": str(stats.put_bytes / max(1, stats.put_count)),
        }

    def _positions(self) -> dict[str, str]:
        store = self._store
        first, end = store.first_position, store.end_position
        return {
            "commitLogMinOffset": str(first),
            "commitLogMaxOffset": str(end),
            "earliestMessageTimeStamp": str(store.store_time_at(first)),
            "dispatchBehindBytes": str(end - store.confirmed_position),
            "remainHowManyDataToFlush": f"{end - store.durable_position} B",
        }


class SettingsHandlers:
    """Shows and changes the broker's settings.

    Args:
        save: Returns once changed settings are on disk.
    """

    def __init__(self, *, config: LiveConfig, save: Callable[[], Awaitable[None]]) -> None:
        self._config = config
        self._save = save

    def routes(self) -> Sequence[Route]:
        """Return the routes of requests about settings."""
        return [
            waiting(
                RequestCode.UPDATE_BROKER_CONFIG, NO_HEADER, of_cluster(UPDATE), self.update_config
            ),
            plain(RequestCode.GET_BROKER_CONFIG, NO_HEADER, of_cluster(GET), self.show_config),
        ]

    async def update_config(self, connection: Connection, command: Command, header: None) -> Reply:
        """Change settings at run time: all of the request, or none."""
        if len(command.body) > CONFIG_BYTES_MAX:
            raise InvalidParameter(f"more than {CONFIG_BYTES_MAX} bytes of settings")
        try:
            values = parse_properties(command.body.decode())
        except (ConfigError, UnicodeDecodeError) as error:
            raise InvalidParameter(f"the settings cannot be read: {error}") from None
        if not values:
            raise InvalidParameter("no setting is given")
        self._config.change(values)
        logger.info(
            "settings changed: peer=%s keys=%s", connection.peer_text, ",".join(sorted(values))
        )
        await self._save()
        return Reply()

    def show_config(self, connection: Connection, command: Command, header: None) -> Reply:
        """Return every setting as properties text."""
        version = encode(self._config.version).decode()
        return Reply(
            body=format_properties(self._config.properties()).encode(),
            fields=to_fields(ConfigResponse(version=version)),
        )


class CleaningHandlers:
    """Deletes files that are no longer needed.

    Args:
        delete_queues: Deletes the queues of a topic, after earlier sends are committed.
        clean: Deletes expired files now.
    """

    def __init__(
        self,
        *,
        topics: TopicTable,
        store: Store,
        delete_queues: Callable[[str], Awaitable[UnfinishedDeletion]],
        clean: Callable[[], Awaitable[object]],
    ) -> None:
        self._topics = topics
        self._store = store
        self._delete_queues = delete_queues
        self._clean = clean

    def routes(self) -> Sequence[Route]:
        """Return the routes of requests to delete files."""
        return [
            waiting(
                RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE, NO_HEADER, of_cluster(UPDATE), self.clean
            ),
            waiting(
                RequestCode.DELETE_EXPIRED_COMMITLOG, NO_HEADER, of_cluster(UPDATE), self.clean
            ),
            waiting(
                RequestCode.CLEAN_UNUSED_TOPIC, NO_HEADER, of_cluster(UPDATE), self.clean_unused
            ),
        ]

    async def clean(self, connection: Connection, command: Command, header: None) -> Reply:
        """Delete expired files at any hour."""
        await self._clean()
        return Reply()

    async def clean_unused(self, connection: Connection, command: Command, header: None) -> Reply:
        """Delete the queues of topics that no longer exist."""
        unused = {queue.topic for queue in self._store.queues} - self._topics.configs.keys()
        deletion: UnfinishedDeletion | None = None
        for topic in sorted(unused):
            if is_work_topic(topic):
                continue  # of a group of brokers to which this store belonged
            logger.info("unused queues deleted: topic=%s peer=%s", topic, connection.peer_text)
            deletion = await self._delete_queues(topic)
            await asyncio.sleep(0)  # serves other requests in between
        if deletion is not None:
            await asyncio.to_thread(deletion.finish_blocking)  # finishes all of them
        return Reply()


def _day_values(name: str, totals: DayTotals) -> dict[str, str]:
    return {
        f"{name}YesterdayMorning": str(totals.yesterday_morning),
        f"{name}TodayMorning": str(totals.today_morning),
        f"{name}TodayNow": str(totals.now),
    }


def _rates(rates: list[float]) -> str:
    return " ".join(str(round(rate, 4)) for rate in rates)


def _disk_values(path: str) -> dict[str, str]:
    try:
        usage = shutil.disk_usage(path)
    except OSError as error:
        logger.warning("disk usage unknown: path=%s reason=%s", path, error)
        return {"commitLogDiskRatio": "-1", "consumeQueueDiskRatio": "-1"}
    ratio = str(round(usage.used / max(1, usage.used + usage.free), 4))
    total, free = usage.total / 2**30, usage.free / 2**30
    return {
        "commitLogDiskRatio": ratio,
        "consumeQueueDiskRatio": ratio,
        "commitLogDirCapacity": f"Total : {total:.1f} GiB, Free : {free:.1f} GiB.",
    }
