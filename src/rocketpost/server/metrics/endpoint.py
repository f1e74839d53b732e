"""The HTTP port for Prometheus and for health checks.

    /metrics                            all metrics; OpenMetrics and gzip if the client accepts them
    /-/healthy, /livez, /healthz        200 while the event loop runs
    /-/ready, /readyz                   200, or 503 with the reasons

Answers GET and HEAD, and closes the connection after each answer. h11 reads the requests.
"""

from __future__ import annotations

import asyncio
import json
import logging
import zlib
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import h11

from rocketpost.errors import ConfigError

logger = logging.getLogger(__name__)

_REQUEST_BYTES_MAX: Final = 16 * 1024
_REQUEST_SECONDS: Final = 10.0
_CONNECTIONS_MAX: Final = 64
_HEALTHY: Final = frozenset({"/-/healthy", "/livez", "/healthz"})
_READY: Final = frozenset({"/-/ready", "/readyz"})
_PLAIN: Final = "text/plain; charset=utf-8"
_TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"
_OPEN: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"
_JSON: Final = "application/json"
_STEP_SECONDS: Final = 0.0005
"""Time for which the text of metrics is written before the event loop serves requests again."""
_GZIP_WINDOW: Final = 16 + zlib.MAX_WBITS
_QUICK: Final = 1  # the text repeats itself: stronger compression takes longer and saves little


class Readiness(NamedTuple):
    """Answer to a readiness check."""

    reasons: list[str]
    """Reasons why the server is not ready; empty if it is."""

    @property
    def is_ready(self) -> bool:
        """Whether clients can be served."""
        return not self.reasons


class _Answer(NamedTuple):
    status: int
    content_type: str
    body: bytes
    is_zipped: bool = False


class MetricsEndpoint:
    """Serves metrics and health over HTTP. Owned by the loop.

    Args:
        slices: Returns the text of all metrics in parts; its argument tells whether to write the
            format of OpenMetrics.
        readiness: Returns whether the server is ready.
        now: Returns seconds, which never decrease.
    """

    def __init__(
        self,
        *,
        slices: Callable[[bool], Iterator[bytes]],
        readiness: Callable[[], Readiness],
        now: Callable[[], float],
    ) -> None:
        self._slices = slices
        self._readiness = readiness
        self._now = now
        self._server: asyncio.Server | None = None
        self._open = 0

    @property
    def port(self) -> int:
        """The bound port."""
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    async def start(self, host: str, port: int) -> None:
        """Listen.

        Raises:
            ConfigError: The address cannot be bound.
        """
        try:
            self._server = await asyncio.start_server(
                self._serve, host, port, limit=_REQUEST_BYTES_MAX
            )
        except OSError as error:
            raise ConfigError(
                f"metrics cannot be served at {host}:{port}: {error.strerror}; change "
                "metricsPromExporterHost or metricsPromExporterPort"
            ) from error
        logger.info("metrics are served: address=http://%s:%s/metrics", host, self.port)

    async def stop(self) -> None:
        """Close the port."""
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()
            self._server = None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        try:
            if self._open <= _CONNECTIONS_MAX:
                async with asyncio.timeout(_REQUEST_SECONDS):
                    await self._exchange(reader, writer)
        except (TimeoutError, OSError) as error:
            logger.debug("an HTTP client is lost: reason=%r", error)
        except Exception:
            logger.exception("an HTTP request failed")
        finally:
            self._open -= 1
            writer.close()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        http = h11.Connection(h11.SERVER, max_incomplete_event_size=_REQUEST_BYTES_MAX)
        try:
            request = await _read_request(http, reader)
        except h11.RemoteProtocolError as error:
            request, answer = None, _Answer(error.error_status_hint, _PLAIN, b"bad request\n")
        else:
            if request is None:
                return
            answer = await self._answer(request)
        writer.write(_encode(http, answer, has_body=request is None or request.method != b"HEAD"))
        await writer.drain()

    async def _answer(self, request: h11.Request) -> _Answer:
        if request.method not in (b"GET", b"HEAD"):
            return _Answer(405, _PLAIN, b"only GET is served\n")
        path = request.target.decode("latin-1").partition("?")[0]
        if path == "/metrics":
            return await self._metrics(request)
        if path in _HEALTHY:
            return _Answer(200, _PLAIN, b"healthy\n")
        if path in _READY:
            found = self._readiness()
            body = json.dumps({"ready": found.is_ready, "reasons": found.reasons}) + "\n"
            return _Answer(200 if found.is_ready else 503, _JSON, body.encode())
        return _Answer(404, _PLAIN, b"there is /metrics, /-/healthy and /-/ready\n")

    async def _metrics(self, request: h11.Request) -> _Answer:
        accepted = {name: value.decode("latin-1") for name, value in request.headers}
        is_open = "application/openmetrics-text" in accepted.get(b"accept", "")
        is_zipped = "gzip" in accepted.get(b"accept-encoding", "")
        parts = []
        began = self._now()
        for part in self._slices(is_open):
            parts.append(part)
            if self._now() - began >= _STEP_SECONDS:
                await asyncio.sleep(0)  # lets requests in between
                began = self._now()
        body = await asyncio.to_thread(_zip_blocking, parts) if is_zipped else b"".join(parts)
        return _Answer(200, _OPEN if is_open else _TEXT, body, is_zipped)


def _zip_blocking(parts: list[bytes]) -> bytes:
    """Compress the parts of a text. Others may run meanwhile: zlib does not hold the GIL."""
    zipper = zlib.compressobj(_QUICK, wbits=_GZIP_WINDOW)
    zipped = [zipper.compress(part) for part in parts]
    return b"".join([*zipped, zipper.flush()])


async def _read_request(http: h11.Connection, reader: asyncio.StreamReader) -> h11.Request | None:
    """Return the request; None if the client left before it was complete."""
    while True:
        event = http.next_event()
        if event is h11.NEED_DATA:
            http.receive_data(await reader.read(_REQUEST_BYTES_MAX))
        elif isinstance(event, h11.Request):
            return event
        else:
            return None


def _encode(http: h11.Connection, answer: _Answer, *, has_body: bool) -> bytes:
    headers = [
        ("Content-Type", answer.content_type),
        ("Content-Length", str(len(answer.body))),
        ("Cache-Control", "no-store"),
        ("Connection", "close"),
    ]
    if answer.is_zipped:
        headers.append(("Content-Encoding", "gzip"))
    if http.our_state is h11.ERROR:
        return b""
    head = http.send(h11.Response(status_code=answer.status, headers=headers))
    assert head is not None
    if not has_body:
        return head
    return head + (http.send(h11.Data(data=answer.body)) or b"")
