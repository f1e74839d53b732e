"""``rocketpost up``: a name server and a broker in one process, for a laptop or a test."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from pathlib import Path

from rocketpost.errors import ConfigError, StoreError
from rocketpost.server.broker import BrokerServer
from rocketpost.server.main import broker_ready, namesrv_ready
from rocketpost.server.namesrv.process import NameServer, NamesrvConfig
from rocketpost.server.process import run
from rocketpost.server.settings.broker import (
    read_properties,
    setting_notes,
    with_new_spellings,
    without_blanks,
)
from rocketpost.server.settings.up import (
    OF_OPTIONS,
    SEGMENT,
    file_notes,
    parse_size,
    sizes_blocking,
)
from rocketpost.transport.host import local_ip


class SingleNode:
    """A name server and a broker that share an event loop.

    Args:
        data: The directory of messages and settings.
        host: The address to listen on, which clients get as well. If it stands for all
            addresses, they get the one that this host uses for outgoing connections.
        namesrv_port: The name server's port; 0 for a free one.
        broker_port: The broker's port; 0 for a free one.
        sync_flush: Whether to acknowledge only messages on disk; None leaves it to ``settings``.
        settings: Properties of the broker by RocketMQ's keys; missing sizes of files are those of
            an existing store, else small ones.
        accept_missing: Whether to start although files of the commit log are missing.
    """

    def __init__(
        self,
        data: Path,
        *,
        host: str = "127.0.0.1",
        namesrv_port: int = 0,
        broker_port: int = 0,
        sync_flush: bool | None = None,
        settings: Mapping[str, str] | None = None,
        accept_missing: bool = False,
    ) -> None:
        self._accept_missing = accept_missing
        self._settings = with_new_spellings(settings or {})
        self._data = data.absolute()
        self._host = host
        self._public = local_ip() if host in ("", "0.0.0.0") else host
        self._broker_port = broker_port
        self._sync_flush = sync_flush
        self.name_server = NameServer(
            NamesrvConfig(
                listen_port=namesrv_port,
                bind_address=host,
                kv_config_path=str(self._data / "namesrv" / "kvConfig.json"),
            )
        )
        self.broker: BrokerServer | None = None

    @property
    def address(self) -> str:
        """The name server's address, as clients use it."""
        return f"{self._public}:{self.name_server.port}"

    async def start(self) -> None:
        """Return when both serve requests."""
        try:
            await self.name_server.start()
        except ConfigError as error:
            raise _with_option(error, "--namesrv-port") from error
        try:
            values = await asyncio.to_thread(self._values_blocking)
            self.broker = BrokerServer(values, accept_missing=self._accept_missing)
            await self.broker.start()
        except ConfigError as error:
            await self.name_server.stop()
            raise _with_option(error, "--broker-port") from error
        except StoreError as error:
            await self.name_server.stop()
            raise StoreError(str(error).replace(SEGMENT, "--segment-size")) from error
        except BaseException:
            await self.name_server.stop()
            raise

    def _values_blocking(self) -> dict[str, str]:
        """Return the broker's properties."""
        root = str(self._data / "store")
        values = (
            sizes_blocking(root, self._settings)
            | {"brokerName": "broker-a"}
            | self._settings
            | {
                "listenPort": str(self._broker_port),
                "bindAddress": self._host,
                "brokerIP1": self._public,
                "namesrvAddr": self.address,
                "storePathRootDir": root,
            }
        )
        if self._sync_flush is not None:
            values["flushDiskType"] = "SYNC_FLUSH" if self._sync_flush else "ASYNC_FLUSH"
        return values

    async def stop(self) -> None:
        """Return when both are closed and saved."""
        if self.broker is not None:
            await self.broker.stop()
        await self.name_server.stop()

    async def wait_failed(self) -> str:
        """Wait until the broker cannot go on, and return the reason."""
        assert self.broker is not None
        return await self.broker.wait_failed()


def run_up(
    *,
    data: Path,
    host: str,
    namesrv_port: int,
    broker_port: int,
    sync_flush: bool | None,
    config: Path | None = None,
    segment_size: str | None = None,
    accept_missing: bool = False,
) -> int:
    """Run until Ctrl-C; return the exit code."""
    try:
        settings = settings_of(config, segment_size)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2

    def make() -> SingleNode:
        return SingleNode(
            data,
            host=host,
            namesrv_port=namesrv_port,
            broker_port=broker_port,
            sync_flush=sync_flush,
            settings=settings,
            accept_missing=accept_missing,
        )

    return run(make, ready=_ready)


def settings_of(config: Path | None, segment_size: str | None) -> dict[str, str]:
    """Return the broker's properties from a file and an option; print notes to stderr.

    Raises:
        ConfigError: The file or one of its settings cannot be used.
    """
    given = {} if config is None else with_new_spellings(without_blanks(read_properties(config)))
    for note in [*file_notes(given, config), *setting_notes(given)]:
        print(f"note: {note}", file=sys.stderr)
    settings = {key: value for key, value in given.items() if key not in OF_OPTIONS}
    if segment_size is not None:
        settings[SEGMENT] = str(parse_size(segment_size))
    return settings


def _ready(node: SingleNode) -> str:
    assert node.broker is not None
    return (
        f"{namesrv_ready(node.name_server)}\n{broker_ready(node.broker)}\n"
        f"Clients connect to {node.address}. Data is in {node.broker.directory}. Ctrl-C stops."
    )


def _with_option(error: ConfigError, option: str) -> ConfigError:
    """Name the option of ``rocketpost up`` where a server's error names its file's key."""
    return ConfigError(str(error).replace("Set listenPort to", f"Set {option} to"))
