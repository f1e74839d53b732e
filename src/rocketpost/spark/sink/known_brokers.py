"""Brokers that may have messages of a sink, so that a second run asks every one of them.

A broker that is down is in no route, so a repeated task would not ask it, and would store its
messages a second time elsewhere. So the driver keeps the names of all brokers that it has seen,
next to Spark's checkpoint in ``rocketmq-brokers.json``. Tasks of an exactly-once sink begin only
when all of them are up.
"""

from __future__ import annotations

import json
import logging
from typing import Final

import pyarrow as pa
from pyarrow import fs

from rocketpost.client import ClientConfig
from rocketpost.client.admin import AdminClient
from rocketpost.client.blocking.loop_thread import shared
from rocketpost.errors import RouteNotFound, StoreError
from rocketpost.spark.options import find_credentials
from rocketpost.spark.outage import retry_during_outage
from rocketpost.spark.sink.options import SinkOptions
from rocketpost.spark.tls_options import find_tls

logger = logging.getLogger(__name__)

FILE: Final = "rocketmq-brokers.json"
_PAUSE_SECONDS: Final = 0.1


def update_known_brokers_blocking(options: SinkOptions) -> frozenset[str]:
    """Add new brokers to the file, and return all brokers that a sink has ever seen.

    Raises:
        RocketpostError: No name server answers, or the file cannot be read.
    """
    known = _read(options.checkpoint) if options.checkpoint else frozenset[str]()
    thread = shared.enter()
    try:
        seen = known | thread.call(_find_brokers(options))
    finally:
        shared.leave()
    if options.checkpoint and seen != known:
        _write(options.checkpoint, seen)
    return seen


async def _find_brokers(options: SinkOptions) -> frozenset[str]:
    config = ClientConfig(
        name_servers=options.name_servers,
        credentials=find_credentials(options),
        tls=find_tls(options),
    )
    async with AdminClient(config=config) as admin:

        async def ask() -> frozenset[str]:
            if options.topic:
                try:
                    route = await admin.cluster.route(options.topic)
                    return frozenset(broker.broker_name for broker in route.broker_datas)
                except RouteNotFound:
                    pass  # the first message creates the topic, on any broker
            return frozenset((await admin.cluster.info()).broker_addr_table)

        seconds = options.send_timeout_ms / 1000
        return await retry_during_outage(ask, seconds=seconds, pause=_PAUSE_SECONDS)


def _read(checkpoint: str) -> frozenset[str]:
    path = f"{checkpoint}/{FILE}"
    try:
        files, root = _open_path(path)
        if files.get_file_info(root).type is fs.FileType.NotFound:
            return frozenset()
        with files.open_input_stream(root) as stream:
            return frozenset(json.loads(stream.read()))
    except pa.ArrowInvalid:
        logger.warning("brokers are not recorded: Arrow cannot open %s", path)
        return frozenset()
    except (OSError, ValueError, TypeError) as error:
        raise StoreError(f"{path} cannot be read: {error}") from error


def _write(checkpoint: str, names: frozenset[str]) -> None:
    path = f"{checkpoint}/{FILE}"
    try:
        files, root = _open_path(path)
        files.create_dir(root.rpartition("/")[0], recursive=True)
        with files.open_output_stream(f"{root}.new") as stream:
            stream.write(json.dumps(sorted(names)).encode())
        files.move(f"{root}.new", root)
    except pa.ArrowInvalid:
        return  # logged when the file could not be read
    except OSError as error:
        raise StoreError(f"{path} cannot be written: {error}") from error


def _open_path(path: str) -> tuple[fs.FileSystem, str]:
    if "://" in path or path.startswith("file:"):
        files, root = fs.FileSystem.from_uri(path)
        return files, root
    return fs.LocalFileSystem(), path
