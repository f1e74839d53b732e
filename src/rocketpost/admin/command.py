"""Common parts of all commands: name servers, time-out, client, errors in one line, options.

A command is an async function that gets an :class:`~rocketpost.client.admin.AdminClient` and its
options. It prints with :func:`say` and raises errors; no stack trace is ever printed.
Exit status: 0 success, 1 failure, 2 wrong command line.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, Final, TypeVar

import click
import msgspec

from rocketpost.admin.body import FORMS
from rocketpost.admin.credentials import tool_credentials_blocking
from rocketpost.admin.output import CannotPrint
from rocketpost.admin.output import Failure as Failure
from rocketpost.admin.output import say as say
from rocketpost.admin.render import Table, json_text, parse_time
from rocketpost.client.admin import AdminClient
from rocketpost.client.config import ClientConfig
from rocketpost.client.tls import environment_tls_blocking
from rocketpost.codec.codes import ANSWER_ONLY, RequestCode
from rocketpost.codec.faults import (
    ConsumerNotOnline,
    GroupNotExist,
    NoMessage,
    RequestCodeNotSupported,
    TopicNotExist,
)
from rocketpost.errors import (
    ConnectionLost,
    Fault,
    NoNameServer,
    RequestTimeout,
    RocketpostError,
    RouteNotFound,
)
from rocketpost.model.route import BrokerData

ENVIRONMENT: Final = "NAMESRV_ADDR"
CALL_SECONDS: Final = 5.0
_QUESTIONS: Final = ANSWER_ONLY | {
    RequestCode.AUTH_GET_USER,
    RequestCode.AUTH_LIST_USER,
    RequestCode.AUTH_GET_ACL,
    RequestCode.AUTH_LIST_ACL,
}
"""Requests that change nothing, so that nothing is unknown if no answer comes."""

Work = Callable[..., Awaitable[None]]
F = TypeVar("F", bound=Callable[..., Any])


def say_json(value: object) -> None:
    """Print a result for programs: standard JSON, indented."""
    say(json_text(value))


def show_rows(table: Table, rows: Sequence[Sequence[object]], *, as_json: bool) -> None:
    """Print a table, or its rows for programs."""
    if as_json:
        say_json(table.objects(rows))
    else:
        say(table.text(rows))


def admin_command(name: str, *, is_watchable: bool = False) -> Callable[[Work], click.Command]:
    """Turn an async function into a command; its docstring becomes the help.

    Args:
        name: RocketMQ's name of the command.
        is_watchable: Whether ``--watch`` repeats it.
    """

    def decorate(work: Work) -> click.Command:
        @functools.wraps(work)
        def run(
            *,
            name_servers: str | None,
            call_seconds: float,
            watch_seconds: float | None = None,
            **options: Any,
        ) -> None:
            done = work if watch_seconds is None else watch(work, watch_seconds)
            run_work(done, options, name_servers=name_servers, call_seconds=call_seconds)

        if is_watchable:
            run = click.option(
                "--watch",
                "watch_seconds",
                metavar="SECONDS",
                type=click.FloatRange(0.1),
                help="Show it again at this interval, until Ctrl-C.",
            )(run)

        run = click.option(
            "--timeout",
            "call_seconds",
            type=click.FloatRange(0.1, 600.0),
            default=CALL_SECONDS,
            show_default=True,
            help="Seconds to wait for an answer of a server.",
        )(run)
        run = click.option(
            "-n",
            "--namesrvAddr",
            "name_servers",
            metavar="ADDRS",
            envvar=ENVIRONMENT,
            help=f"Name servers, host:port;host:port. {ENVIRONMENT} if not given.",
        )(run)
        context = {"help_option_names": ["-h", "--help"]}
        return click.command(name, context_settings=context)(run)

    return decorate


def watch(work: Work, seconds: float) -> Work:
    """Return a function that does some work again and again.

    On a terminal each result replaces the one before. In a pipe a line with the time precedes each
    one, unless it is JSON. Once there was a result, a failure is shown and does not end it: the
    servers that are watched may be restarting.
    """

    async def repeat(admin: AdminClient, **options: Any) -> None:
        is_first = True
        while True:
            if sys.stdout.isatty():
                click.clear()
            if not options.get("as_json"):
                say(f"Every {seconds:g} s: {time.strftime('%Y-%m-%d %H:%M:%S')}")
            try:
                await work(admin, **options)
            except (RocketpostError, Failure) as error:
                if is_first or isinstance(error, CannotPrint):
                    raise
                failure = error if isinstance(error, Failure) else Failure(describe_error(error))
                failure.show()
            is_first = False
            sys.stdout.flush()
            await asyncio.sleep(seconds)

    return repeat


def run_work(
    work: Work, options: dict[str, Any], *, name_servers: str | None, call_seconds: float
) -> None:
    """Run a command's function with a client.

    Raises:
        Failure: The function failed.
    """
    if not (name_servers or "").strip(" ;"):
        raise Failure(f"no name server is known: pass -n host:port or set {ENVIRONMENT}")
    with _notes_on_stderr():
        try:
            config = ClientConfig(
                name_servers=name_servers,
                call_timeout=call_seconds,
                credentials=tool_credentials_blocking(),
                tls=environment_tls_blocking(),
            )
            asyncio.run(_with_client(work, options, config))
        except RocketpostError as error:
            raise Failure(describe_error(error)) from error


async def _with_client(work: Work, options: dict[str, Any], config: ClientConfig) -> None:
    async with AdminClient(config=config) as admin:
        await work(admin, **options)


def describe_error(error: RocketpostError) -> str:
    """Return one line that says what is wrong and what to do about it."""
    notes = getattr(error, "__notes__", [])
    said = error.remark if isinstance(error, Fault) else str(error)
    text = " ".join("; ".join([said, *notes]).split()) or type(error).__name__
    match error:
        case NoNameServer():
            return f"{text}; check -n (or {ENVIRONMENT}) and that mqnamesrv runs there"
        case ConnectionLost():
            return f"{text}; check the address and that a server runs there"
        case RequestTimeout(request_code=code) if code in _QUESTIONS:
            return f"{text}; --timeout waits longer"
        case RequestTimeout():
            return f"{text}; it may or may not have taken effect, --timeout waits longer"
        case RouteNotFound() | TopicNotExist():
            return f"{text}; `mqadmin topicList` and `mqadmin clusterList` show what there is"
        case ConsumerNotOnline():
            return f"{text}; start a consumer of the group first"
        case GroupNotExist():
            return f"{text}; `mqadmin consumerProgress` shows the groups"
        case NoMessage():
            return text
        case RequestCodeNotSupported():
            return f"the server does not support this: {text}"
        case Fault():
            return f"refused with code {int(error.code)}: {text}"
    return text


@contextlib.contextmanager
def errors_from(address: str, *, except_for: type[Fault] | tuple[()] = ()) -> Iterator[None]:
    """Add the name of the server to refusals that are raised inside.

    Args:
        address: The server.
        except_for: A refusal that the caller handles itself.

    Raises:
        Failure: The server refused something.
    """
    try:
        yield
    except except_for:
        raise
    except Fault as error:
        raise Failure(f"{address}: {describe_error(error)}") from error


# Options shared by many commands.


def topic_option(function: F) -> F:
    """Add ``-t TOPIC``, required."""
    return click.option("-t", "--topic", "topic", metavar="TOPIC", required=True, help="Topic.")(
        function
    )


def json_option(function: F) -> F:
    """Add ``--json``."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")(
        function
    )


def check_body_form(
    context: click.Context, parameter: click.Parameter, value: str | None
) -> str | None:
    """Check the value of a body format option: a charset, or json, hex, base64. A click callback.

    Raises:
        BadParameter: There is no such form or charset.
    """
    if value is not None and value.lower() in FORMS:
        return value
    try:
        b"x".decode(value or "utf-8", "replace")  # an empty body would not look up the charset
    except LookupError as error:
        raise click.BadParameter(str(error), context, parameter) from error
    return value


def parse_time_option(
    context: click.Context, parameter: click.Parameter, value: str | None
) -> int | None:
    """Parse the value of an option as a time. A click callback.

    Raises:
        BadParameter: The value is not a time.
    """
    if value is None:
        return None
    try:
        return parse_time(value, now_ms=time.time_ns() // 1_000_000)
    except ValueError as error:
        raise click.BadParameter(str(error), context, parameter) from error


def broker_or_cluster(function: F) -> F:
    """Add ``-b ADDRESS`` and ``-c CLUSTER``; see :func:`find_masters`."""
    function = click.option(
        "-c",
        "--clusterName",
        "--cluster",
        "cluster",
        metavar="NAME",
        help="All masters of a cluster.",
    )(function)
    return click.option(
        "-b", "--brokerAddr", "broker", metavar="HOST:PORT", help="One broker, by its address."
    )(function)


def cluster_hint(function: F) -> F:
    """Add RocketMQ's ``-c``, which matters only for light topics. They are not in this version."""
    return click.option(
        "-c",
        "--cluster",
        "cluster",
        metavar="NAME",
        help="Cluster of a light topic; not in this version.",
        callback=_refuse_light_topics,
        expose_value=False,
    )(function)


def _refuse_light_topics(
    context: click.Context, parameter: click.Parameter, value: str | None
) -> None:
    if value is not None:
        raise click.UsageError("-c is for light topics, which are not in this version", context)


def require_one(broker: str | None, cluster: str | None) -> None:
    """Check that exactly one of ``-b`` and ``-c`` was given.

    Raises:
        UsageError: None or both were given.
    """
    if (broker is None) == (cluster is None):
        raise click.UsageError("give exactly one of -b HOST:PORT and -c CLUSTER")


async def find_masters(admin: AdminClient, broker: str | None, cluster: str | None) -> list[str]:
    """Return the addresses of the masters selected by ``-b`` or ``-c``.

    Raises:
        UsageError: None or both were given.
        Failure: The cluster has no master.
        RouteNotFound: There is no such cluster.
    """
    require_one(broker, cluster)
    if broker is not None:
        return [broker]
    assert cluster is not None
    masters = await admin.cluster.masters(cluster)
    if not masters:
        raise Failure(f"the cluster {cluster} has no master; `mqadmin clusterList` shows it")
    return masters


async def list_cluster_brokers(
    admin: AdminClient, cluster: str | None
) -> list[tuple[str, BrokerData]]:
    """Return every broker of a cluster, or of all clusters, with the cluster's name.

    Raises:
        RouteNotFound: There is no such cluster.
    """
    info = await admin.cluster.info()
    clusters = info.cluster_addr_table
    if cluster is not None and cluster not in clusters:
        known = ", ".join(sorted(clusters)) or "none"
        raise RouteNotFound(f"there is no cluster {cluster}; known are: {known}")
    return [
        (name, info.broker_addr_table[broker])
        for name in sorted(clusters)
        if cluster in (None, name)
        for broker in sorted(clusters[name])
        if broker in info.broker_addr_table
    ]


def read_json_blocking(path: str, kind: type[Any]) -> Any:
    """Return the content of a JSON file.

    Raises:
        Failure: The file cannot be read, or has another structure.
    """
    try:
        with open(path, "rb") as file:
            return msgspec.json.decode(file.read(), type=kind)
    except OSError as error:
        raise Failure(f"cannot read {path}: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise Failure(f"{path} is not valid JSON for this command: {error}") from error


# Log messages of the client.


class _Notes(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        click.echo(f"note: {record.getMessage()}", err=True)


@contextlib.contextmanager
def _notes_on_stderr() -> Iterator[None]:
    logger = logging.getLogger("rocketpost")
    handler = _Notes(logging.WARNING)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
