"""The process of the console: opens the port, prints the address, collects, serves, stops."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import ssl
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import uvicorn

from rocketpost.admin.credentials import tool_credentials_blocking
from rocketpost.client.config import ClientConfig
from rocketpost.client.tls import environment_tls_blocking
from rocketpost.console.access.accounts import Accounts
from rocketpost.console.access.users import Role
from rocketpost.console.actions.audit_log import AuditLog
from rocketpost.console.actions.plan import Plans
from rocketpost.console.app import make_app
from rocketpost.console.catalogue import load_catalogue
from rocketpost.console.clusters import Cluster
from rocketpost.console.config import ConsoleConfig
from rocketpost.console.jobs import copying, resending
from rocketpost.console.jobs.runner import Jobs, Work
from rocketpost.console.reasons import Reasons
from rocketpost.console.visit import Services
from rocketpost.errors import ConfigError, RocketpostError

logger = logging.getLogger(__name__)

_LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s %(message)s"
_CALL_SECONDS = 5.0
_STOP_SECONDS = 3
JOB_WORKS: dict[str, Work] = {
    resending.KIND: resending.run_resending,
    copying.KIND: copying.run_copying,
}
"""The work of each kind of job."""


def run_console(config: ConsoleConfig, *, parent_fd: int | None = None) -> int:
    """Run until a signal; return the exit code.

    Args:
        config: The settings.
        parent_fd: A pipe from the process that started this one; the console also stops when it
            closes.
    """
    logging.basicConfig(level=logging.INFO, format=_LOG_FORMAT, stream=sys.stderr)
    # The page shows a broker that is away; a log line for each round would fill the disk.
    logging.getLogger("rocketpost.client").setLevel(logging.ERROR)
    logging.getLogger("rocketpost.transport").setLevel(logging.ERROR)
    try:
        services = make_services_blocking(config)
        check_state_blocking(config)
        server = make_server_blocking(services)
        listener = open_port_blocking(config)
    except RocketpostError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    with listener:
        services.port = listener.getsockname()[1]
        asyncio.run(_serve(services, server, listener, parent_fd))
    return 0


def make_services_blocking(config: ConsoleConfig) -> Services:
    """Read the console's files and make its parts.

    Raises:
        ConfigError: A file or a setting cannot be used.
    """
    accounts = Accounts(config.state / "users.json")
    accounts.users.load_blocking()
    config.check_reachable(has_users=not accounts.users.is_empty)
    audit = AuditLog(config.state / "audit.jsonl")
    audit.load_blocking()
    jobs = Jobs(config.state / "jobs", JOB_WORKS)
    jobs.load_blocking()
    credentials, tls = tool_credentials_blocking(), environment_tls_blocking()
    clusters = [
        Cluster(
            ClientConfig(
                name_servers=each, call_timeout=_CALL_SECONDS, credentials=credentials, tls=tls
            )
        )
        for each in config.clusters
    ]
    catalogue = load_catalogue()
    return Services(
        config=config,
        catalogue=catalogue,
        reasons=Reasons(catalogue),
        accounts=accounts,
        clusters=clusters,
        audit=audit,
        plans=Plans(),
        jobs=jobs,
    )


def check_state_blocking(config: ConsoleConfig) -> None:
    """Make the state directory if necessary, and check that files can be written there.

    Raises:
        ConfigError: They cannot: no user could be made, and no act recorded.
    """
    try:
        config.state.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryFile(dir=config.state) as file:
            file.write(b"x")
    except OSError as error:
        raise ConfigError(
            f"users and the audit log cannot be saved in {config.state}: {error.strerror}; choose "
            "another directory with --state, or with --data of rocketpost up"
        ) from error


def open_port_blocking(config: ConsoleConfig) -> socket.socket:
    """Open the port.

    Raises:
        ConfigError: It cannot be opened.
    """
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    try:
        return socket.create_server((config.host, config.port), family=family)
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {config.host} port {config.port}: {error.strerror}; choose "
            "another one with --port, or with --console-port of rocketpost up"
        ) from error


def make_server_blocking(services: Services) -> uvicorn.Server:
    """Return the HTTP server, with its certificate.

    Raises:
        ConfigError: The certificate or its key cannot be used.
    """
    config = services.config
    settings = uvicorn.Config(
        make_app(services),
        log_config=None,
        log_level=logging.WARNING,
        access_log=False,
        server_header=False,
        lifespan="off",
        proxy_headers=config.proxy_url is not None,
        ssl_certfile=config.certificate,
        ssl_keyfile=config.key,
        timeout_graceful_shutdown=_STOP_SECONDS,
        timeout_keep_alive=30,
    )
    path: Path | None = None
    try:
        for path in filter(None, (config.certificate, config.key)):
            path.read_bytes()  # the error of the TLS library would not name the file
        settings.load()
    except ssl.SSLError as error:
        raise ConfigError(
            f"--tls-cert {config.certificate} and --tls-key {config.key} cannot be used: "
            f"{error.reason or error}"
        ) from error
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    return uvicorn.Server(settings)


def describe_start(services: Services) -> str:
    """Return the lines that say how to open the console."""
    url = services.config.url(services.port)
    if not services.accounts.users.is_empty:
        return f"The console is ready: {url}/"
    token = services.accounts.invitations.make(role=Role.ADMIN)
    return (
        f"The console is ready: {url}/\n"
        "There is no user yet. Open this link within ten minutes to make the first one; it works "
        f"once:\n  {url}/invitation?token={token}"
    )


@contextlib.asynccontextmanager
async def collect_clusters(services: Services) -> AsyncIterator[None]:
    """Connect to all clusters, and collect while the context is open."""
    tasks: list[asyncio.Task[None]] = []
    try:
        for cluster in services.clusters:
            await cluster.start()
            tasks.append(asyncio.create_task(cluster.survey.run()))
            tasks.append(asyncio.create_task(cluster.collector.run()))
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for cluster in services.clusters:
            await cluster.stop()


async def _serve(
    services: Services, server: uvicorn.Server, listener: socket.socket, parent_fd: int | None
) -> None:
    if parent_fd is not None:
        asyncio.get_running_loop().add_reader(parent_fd, _stop_with_parent, server, parent_fd)
    for number in (signal.SIGINT, signal.SIGTERM):
        # uvicorn raises the signal again when it has stopped; the default handler would end the
        # process before jobs and connections are closed.
        signal.signal(number, server.handle_exit)
    async with collect_clusters(services), services.jobs:
        print(describe_start(services), flush=True)
        await server.serve(sockets=[listener])


def _stop_with_parent(server: uvicorn.Server, parent_fd: int) -> None:
    if os.read(parent_fd, 1):
        return
    asyncio.get_running_loop().remove_reader(parent_fd)
    server.should_exit = True
