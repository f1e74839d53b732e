"""RocketMQ's own commands: ``mqnamesrv`` and ``mqbroker``.

Only ``mqbroker`` imports the broker, so that a name server starts sooner.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rocketpost import VERSION
from rocketpost.client.tls import environment_tls_blocking
from rocketpost.errors import ConfigError
from rocketpost.server.fleet import BROKERS_MAX
from rocketpost.server.fleet.plan import (
    idle_stores_blocking,
    idle_warning,
    plan_brokers,
)
from rocketpost.server.namesrv.process import NameServer, NamesrvConfig
from rocketpost.server.process import run
from rocketpost.server.settings.access import AccessConfig
from rocketpost.server.settings.broker import (
    broker_settings,
    read_properties,
    setting_notes,
    without_blanks,
)
from rocketpost.server.settings.foreign_keys import NAMESRV_IGNORED, NAMESRV_REFUSED_WHEN, refuse
from rocketpost.server.settings.group import group_settings
from rocketpost.server.settings.tls import TlsConfig
from rocketpost.settings import build, format_properties, keys_of, reject_unknown, to_properties
from rocketpost.transport.host import local_ip

if TYPE_CHECKING:
    from rocketpost.proxy.settings import ProxyConfig
    from rocketpost.server.broker import BrokerServer

logger = logging.getLogger(__name__)

_HELP = {"help_option_names": ["-h", "--help"]}
_NO_NAME_SERVERS = (
    "warning: no name server is set (-n, namesrvAddr or NAMESRV_ADDR): clients will not find "
    "this broker"
)
_CONFIG_FILE = click.Path(path_type=Path, dir_okay=False)


@click.command(context_settings=_HELP)
@click.option("-c", "--configFile", "file", type=_CONFIG_FILE, help="Properties file.")
@click.option("-p", "--printConfigItem", "show", is_flag=True, help="Print the settings and exit.")
@click.option("-n", "--namesrvAddr", "ignored", help="Accepted as RocketMQ does; has no effect.")
@click.version_option(VERSION, "-V", "--version", prog_name="mqnamesrv of Rocketpost")
def mqnamesrv(file: Path | None, show: bool, ignored: str | None) -> None:
    """Run a name server."""
    del ignored  # RocketMQ's start scripts pass it to every command.
    try:
        values = read_properties(file) if file else {}
        refuse(values, NAMESRV_REFUSED_WHEN)
        inactive = (*NAMESRV_IGNORED, *NAMESRV_REFUSED_WHEN)
        reject_unknown(values, keys_of(NamesrvConfig), keys_of(TlsConfig), inactive=inactive)
        config = build(NamesrvConfig, values)
    except ConfigError as error:
        _stop(error)
    if show:
        click.echo(format_properties(to_properties(config)), nl=False)
        return
    _warn_ignored(values, NAMESRV_IGNORED)
    sys.exit(run(lambda: NameServer(config, tls=values), ready=namesrv_ready, log=config))


@click.command(context_settings=_HELP)
@click.option("-c", "--configFile", "file", type=_CONFIG_FILE, help="Properties file.")
@click.option("-n", "--namesrvAddr", "name_servers", help="Name servers: host:port;host:port")
@click.option("-p", "--printConfigItem", "show", is_flag=True, help="Print all settings and exit.")
@click.option(
    "-m", "--printImportantConfig", "important", is_flag=True, help="Print the main ones and exit."
)
@click.option(
    "--accept-missing-log",
    "accept_missing",
    is_flag=True,
    help="Start although files of the commit log are missing; their messages are lost.",
)
@click.option(
    "--brokers",
    "count",
    type=click.IntRange(1, BROKERS_MAX),
    default=1,
    show_default=True,
    help="Number of brokers to run, one process each, to use more cores.",
)
@click.option(
    "--enable-proxy", "with_proxy", is_flag=True, help="Also serve clients of RocketMQ 5 (gRPC)."
)
@click.option(
    "-pc", "--proxyConfigPath", "proxy_file", type=_CONFIG_FILE, help="Settings of gRPC, in JSON."
)
@click.version_option(VERSION, "-V", "--version", prog_name="mqbroker of Rocketpost")
def mqbroker(
    file: Path | None,
    name_servers: str | None,
    show: bool,
    important: bool,
    accept_missing: bool,
    count: int,
    with_proxy: bool,
    proxy_file: Path | None,
) -> None:
    """Run a broker, or several."""
    proxy = None
    try:
        values = without_blanks(read_properties(file)) if file else {}
        if name_servers is not None:
            values["namesrvAddr"] = name_servers
        if advertised := os.environ.get("ROCKETPOST_ADVERTISE"):
            values.setdefault("brokerIP1", advertised)
        broker, _ = broker_settings(values)
        plans = plan_brokers(values, count)
        if with_proxy:
            if count > 1:
                raise ConfigError("--enable-proxy serves one broker; run mqproxy beside several")
            proxy = _proxy_settings(proxy_file)
        elif proxy_file is not None:
            raise ConfigError("-pc has no effect without --enable-proxy")
    except ConfigError as error:
        _stop(error)
    for note in setting_notes(values):
        print(f"note: {note}", file=sys.stderr)
    if show or important:
        for plan in plans:
            if count > 1:
                click.echo(f"# {plan.name}")
            click.echo(format_properties(_in_force(plan.values, important=important)), nl=False)
        return
    warn_of_fleet(values, count)
    if not (broker.name_servers or os.environ.get("NAMESRV_ADDR") or broker.ask_address_server):
        print(_NO_NAME_SERVERS, file=sys.stderr)
    if count > 1:
        from rocketpost.server.fleet.fleet import fleet_ready, make_fleet

        sys.exit(
            run(
                lambda: make_fleet(plans, accept_missing=accept_missing),
                ready=fleet_ready,
                log=broker,
            )
        )
    if proxy is not None:
        from rocketpost.server.proxy.broker import ProxiedBroker

        def make() -> BrokerServer:
            return ProxiedBroker(values, proxy=proxy, accept_missing=accept_missing)

        sys.exit(run(make, ready=broker_ready, log=broker, announced=announced_address))
    from rocketpost.server.broker import BrokerServer

    sys.exit(
        run(
            lambda: BrokerServer(values, accept_missing=accept_missing),
            ready=broker_ready,
            log=broker,
            announced=announced_address,
        )
    )


@click.command(context_settings=_HELP)
@click.option("-n", "--namesrvAddr", "name_servers", help="Name servers: host:port;host:port")
@click.option("-pc", "--proxyConfigPath", "file", type=_CONFIG_FILE, help="Settings, in JSON.")
@click.option(
    "-pm",
    "--proxyMode",
    "mode",
    type=click.Choice(["cluster", "local"], case_sensitive=False),
    default="cluster",
    help="Always cluster; for local, run mqbroker --enable-proxy.",
)
@click.version_option(VERSION, "-V", "--version", prog_name="mqproxy of Rocketpost")
def mqproxy(name_servers: str | None, file: Path | None, mode: str) -> None:
    """Serve clients of RocketMQ 5 (gRPC) in front of the brokers of a cluster."""
    try:
        if mode == "local":
            raise ConfigError("a proxy in a broker's process is started by mqbroker --enable-proxy")
        config = _proxy_settings(file)
        if name_servers is not None:
            config = replace(config, name_servers=name_servers)
        key = "innerClientAuthenticationCredentials"
        login = build(AccessConfig, {key: config.inner_credentials}).inner_login
        tls = environment_tls_blocking()
    except ConfigError as error:
        _stop(error)
    from rocketpost.server.proxy.process import ProxyServer

    def ready(server: ProxyServer) -> str:
        line = f"The proxy[{server.address}] boot success, name server is {server.name_servers}"
        if remoting := server.remoting_address:
            line = f"{line}, remoting port {remoting}"
        return line

    sys.exit(run(lambda: ProxyServer(config, login=login, tls=tls), ready=ready))


def _proxy_settings(file: Path | None) -> ProxyConfig:
    """Read the settings of the proxy; print notes about them.

    Raises:
        ConfigError: The file or one of its settings cannot be used.
    """
    from rocketpost.server.proxy.broker import read_settings

    try:
        text = file.read_text() if file is not None else ""
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {file}: {error}") from None
    config, notes = read_settings(text)
    for note in notes:
        print(f"note: {note}", file=sys.stderr)
    return config


def warn_of_fleet(values: Mapping[str, str], count: int) -> None:
    """Print what a user should know about running so many brokers here."""
    if directories := idle_stores_blocking(values, count):
        print(idle_warning(directories), file=sys.stderr)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    if cores is not None and count > cores:
        text = f"note: {count} brokers on {cores} cores: more than one for each core gains nothing"
        print(text, file=sys.stderr)


def namesrv_ready(server: NameServer) -> str:
    """Return the line that scripts wait for, as RocketMQ prints it."""
    return f"The Name Server boot success. serializeType=JSON, address {server.address}"


def broker_ready(server: BrokerServer) -> str:
    """Return the line that scripts wait for, as RocketMQ prints it."""
    line = f"The broker[{server.name}, {server.address}] boot success. serializeType=JSON"
    if grpc_port := getattr(server, "grpc_port", 0):
        line = f"{line}, gRPC port {grpc_port}"
    if not server.name_servers:
        return line
    line = f"{line} and name server is {server.name_servers}"
    if missing := server.unregistered:
        return f"{line} (not registered yet with {', '.join(missing)})"
    return line


def announced_address(server: BrokerServer) -> str:
    """Return the address that clients get."""
    return server.address


def _in_force(values: Mapping[str, str], *, important: bool) -> dict[str, str]:
    """Return the settings of a broker, with the values that it uses for those it was not given."""
    from rocketpost.server.broker import BrokerServer

    settings = broker, _ = broker_settings(values)
    server = BrokerServer(values)
    group = group_settings(values)
    shown = settings if group is None else (*settings, group)
    return _list_settings(shown, important=important) | {
        "brokerName": server.name,
        "brokerIP1": broker.public_ip or local_ip(),
        "namesrvAddr": server.name_servers,
        "storePathRootDir": server.directory,
    }


def _list_settings(settings: tuple[object, ...], *, important: bool) -> dict[str, str]:
    listed: dict[str, str] = {}
    for each in settings:
        fields = keys_of(type(each))
        texts = to_properties(each)
        listed |= {
            key: texts[key]
            for key, field in fields.items()
            if key in texts and (not important or field.metadata["important"])
        }
    return listed


def _warn_ignored(values: Mapping[str, str], ignored: Mapping[str, str]) -> None:
    for key in sorted(set(values) & set(ignored)):
        print(f"note: {key} has no effect: {ignored[key]}", file=sys.stderr)


def _stop(error: ConfigError) -> None:
    print(f"error: {error}", file=sys.stderr)
    sys.exit(2)
