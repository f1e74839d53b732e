"""Every request that a name server serves, against a real one."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from pathlib import Path

from fuzz.finding import Find, watched
from fuzz.harness import Exchange
from fuzz.requests import Requests, learnt_headers
from fuzz.supply import Supply
from rocketpost.codec.command import encode_command
from rocketpost.server.namesrv.process import NameServer, NamesrvConfig
from rocketpost.settings import keys_of

_RUNS_A_SERVER = 1000
_REQUESTS_MAX = 6


class Target:
    """A name server, made anew now and then so that a find depends on little history."""

    def __init__(self) -> None:
        self._watching = watched()
        self._watch = self._watching.__enter__()
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(self._loop_error)
        self._errors: list[str] = []
        self._server: NameServer | None = None
        self._home = Path()
        self._start()

    def check(self, data: bytes) -> None:
        """Send a few requests on one connection."""
        if self._server is None or self._runs >= _RUNS_A_SERVER:
            self._stop()
            self._start()
        self._runs += 1
        self._watch.clear()
        try:
            self._loop.run_until_complete(self._run(Supply(data)))
            self._watch.judge()
            if self._errors:
                raise Find("; ".join(self._errors))
            names = set(os.listdir(self._home))
            if not names <= {"kv.json", "kv.json.bak", "kv.json.tmp"}:
                raise Find(f"files beside the table: {names}")
        except BaseException:
            self._errors.clear()
            self._stop()
            raise

    def close(self) -> None:
        """Stop the server."""
        self._stop()
        self._loop.close()
        self._watching.__exit__(None, None, None)

    async def _run(self, supply: Supply) -> None:
        exchange = self._exchange()
        wanted: set[int] = set()
        stream = b""
        for opaque in range(supply.number(1, _REQUESTS_MAX)):
            frame, wants_answer = self._requests.frame(supply, opaque)
            stream += frame
            if wants_answer:
                wanted.add(opaque)
        exchange.feed(stream)
        await exchange.settle(self._is_idle)
        got = [command.opaque for command in exchange.answers()]
        if len(got) != len(set(got)) or not set(got) <= wanted:
            raise Find(f"answers to {got}, wanted {sorted(wanted)}")
        if not exchange.is_closed and set(got) != wanted:
            raise Find(f"answers to {got}, wanted {sorted(wanted)}")
        await exchange.hang_up()

    def _is_idle(self) -> bool:
        assert self._server is not None
        return self._server._dispatcher.is_idle

    def _exchange(self) -> Exchange:
        assert self._server is not None
        return Exchange(
            on_request=self._server._dispatcher.handle,
            on_lost=self._server._connection_lost,
            watch=self._watch,
        )

    def _loop_error(self, _: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        self._errors.append(f"{context.get('message')}: {context.get('exception')!r}")

    def _start(self) -> None:
        shared = "/dev/shm" if os.path.isdir("/dev/shm") else None
        self._home = Path(tempfile.mkdtemp(prefix="rocketpost-fuzz-", dir=shared))
        self._runs = 0
        self._loop.run_until_complete(self._begin())

    async def _begin(self) -> None:
        self._server = NameServer(
            NamesrvConfig(
                listen_port=0,
                bind_address="127.0.0.1",
                kv_config_path=str(self._home / "kv.json"),
                brokers_max=16,
                route_entries_max=200,
            )
        )
        await self._server.start()
        codes = sorted(self._server._dispatcher.routes)
        exchange = self._exchange()

        def probe(code: int) -> None:
            exchange.feed(encode_command(code, opaque=code))

        headers = learnt_headers(codes, probe)
        await exchange.settle(self._is_idle)
        await exchange.hang_up()
        self._requests = Requests(codes, headers, list(keys_of(NamesrvConfig)))

    def _stop(self) -> None:
        if self._server is not None:
            server, self._server = self._server, None
            self._loop.run_until_complete(server.stop())
        shutil.rmtree(self._home, ignore_errors=True)
