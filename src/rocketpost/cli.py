"""The ``rocketpost`` command: a server for a laptop, a guided tour, and a check of the machine."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from rocketpost import VERSION
from rocketpost.kernel import FORM
from rocketpost.server.fleet import BROKERS_MAX, NODES_MAX

VERSION_TEXT = f"%(prog)s, version %(version)s, kernel {FORM.word}"


class _Pipelines(click.Group):
    """The Spark commands; Spark is imported only when one of them is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all pipelines."""
        return _load_pipelines().list_commands(ctx)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a pipeline."""
        return _load_pipelines().get_command(ctx, cmd_name)


def _load_pipelines() -> click.Group:
    try:
        from rocketpost.spark.pipelines.commands import pipeline
    except ImportError as error:
        raise click.ClickException(
            f"pipelines need Spark ({error}): pip install 'rocketpost[spark]'"
        ) from None
    return pipeline


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(VERSION, "-V", "--version", message=VERSION_TEXT)
def rocketpost() -> None:
    """RocketMQ in Python: name server, durable broker, client and tools."""


@rocketpost.command()
@click.option(
    "--data",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("data"),
    show_default=True,
    help="Where messages and settings are kept.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--namesrv-port", default=9876, show_default=True, type=click.IntRange(0, 65535))
@click.option("--broker-port", default=10911, show_default=True, type=click.IntRange(0, 65535))
@click.option(
    "--grpc-port",
    type=click.IntRange(0, 65535),
    help=(
        "Port for clients of RocketMQ 5. [default: 8081, if it is free and the extra grpc is "
        "installed]"
    ),
)
@click.option(
    "--sync-flush/--async-flush",
    default=None,
    help="Whether messages are acknowledged once on disk, or sooner.",
)
@click.option(
    "-c",
    "--config",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Properties file of the broker, with RocketMQ's keys.",
)
@click.option(
    "--segment-size",
    metavar="SIZE",
    help=(
        "Size of the files of a new log, such as 1G; two are allocated in advance. [default: "
        "64M, or as in --data]"
    ),
)
@click.option(
    "--accept-missing-log",
    "accept_missing",
    is_flag=True,
    help="Start although files of the log are missing; their messages are lost.",
)
@click.option(
    "--brokers",
    "count",
    type=click.IntRange(1, BROKERS_MAX),
    default=1,
    show_default=True,
    help="Number of brokers; several run in processes of their own, to use more cores.",
)
@click.option(
    "--nodes",
    type=click.IntRange(1, NODES_MAX),
    help="Number of members of a group that elects its leader and survives the loss of a member.",
)
@click.option("--console", "with_console", is_flag=True, help="Also serve the web console.")
@click.option("--console-port", default=8088, show_default=True, type=click.IntRange(0, 65535))
def up(
    data: Path,
    host: str,
    namesrv_port: int,
    broker_port: int,
    grpc_port: int | None,
    sync_flush: bool | None,
    config: Path | None,
    segment_size: str | None,
    accept_missing: bool,
    count: int,
    nodes: int | None,
    with_console: bool,
    console_port: int,
) -> None:
    """Run a name server and a broker, or several, until Ctrl-C."""
    from rocketpost.console.child import ConsoleChild
    from rocketpost.errors import ConfigError
    from rocketpost.server.up import run_up

    # Others on the network reach it through a proxy with TLS; see `rocketpost console`.
    beside = ConsoleChild(data / "console", host="127.0.0.1", port=console_port)
    if with_console:
        try:
            beside.check_installed()
        except ConfigError as error:
            raise click.ClickException(str(error)) from None
    try:
        code = run_up(
            data=data,
            host=host,
            namesrv_port=namesrv_port,
            broker_port=broker_port,
            grpc_port=grpc_port,
            sync_flush=sync_flush,
            config=config,
            segment_size=segment_size,
            accept_missing=accept_missing,
            count=count,
            nodes=nodes or 0,
            on_ready=beside.start if with_console else lambda address: None,
        )
    finally:
        beside.stop_blocking()
    sys.exit(code)


@rocketpost.command()
@click.option(
    "-n",
    "--namesrvAddr",
    "clusters",
    metavar="ADDRS",
    multiple=True,
    envvar="NAMESRV_ADDR",
    help="Name servers of a cluster, host:port;host:port; may be repeated. [env: NAMESRV_ADDR]",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", default=8088, show_default=True, type=click.IntRange(0, 65535))
@click.option(
    "--state",
    type=click.Path(path_type=Path, file_okay=False),
    help="Directory of users and of the audit log. [default: below ~/.local/state]",
)
@click.option("--tls-cert", type=click.Path(path_type=Path, dir_okay=False), help="Certificate.")
@click.option("--tls-key", type=click.Path(path_type=Path, dir_okay=False), help="Its key.")
@click.option("--behind-proxy", metavar="URL", help="Address that users open, if a proxy does TLS.")
@click.option("--allow-host", multiple=True, help="Another name by which browsers call it.")
@click.option("--read-only", is_flag=True, help="Let nobody change anything.")
@click.option("--mask", multiple=True, metavar="TOPIC:FIELD", help="Hide a JSON field of bodies.")
@click.option("--parent-fd", type=int, hidden=True)
def console(
    clusters: tuple[str, ...],
    host: str,
    port: int,
    state: Path | None,
    tls_cert: Path | None,
    tls_key: Path | None,
    behind_proxy: str | None,
    allow_host: tuple[str, ...],
    read_only: bool,
    mask: tuple[str, ...],
    parent_fd: int | None,
) -> None:
    """Serve the web console of a cluster, until Ctrl-C."""
    try:
        from rocketpost.console.server import run_console
    except ImportError as error:
        raise click.ClickException(
            f"the console needs its extra ({error}): pip install 'rocketpost[console]'"
        ) from None
    from rocketpost.console.config import ConsoleConfig, default_state
    from rocketpost.errors import ConfigError

    try:
        config = ConsoleConfig(
            clusters=clusters,
            host=host,
            port=port,
            state=state or default_state(),
            certificate=tls_cert,
            key=tls_key,
            proxy_url=behind_proxy,
            allowed_hosts=allow_host,
            read_only=read_only,
            masks=mask,
        )
    except ConfigError as error:
        raise click.ClickException(str(error)) from None
    sys.exit(run_console(config, parent_fd=parent_fd))


@rocketpost.command()
@click.argument("name")
@click.option(
    "-c",
    "--config",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Settings file of the broker or name server.",
)
@click.option(
    "--data",
    type=click.Path(path_type=Path, file_okay=False),
    help="Directory of rocketpost up, whose broker and name server get the user.",
)
@click.option("--name-server", is_flag=True, help="The server is a name server.")
@click.option("--password-stdin", is_flag=True, help="Read the password instead of making one.")
def user(
    name: str, config: Path | None, data: Path | None, name_server: bool, password_stdin: bool
) -> None:
    """Create the super user NAME, or give it a new password, while its server is stopped."""
    from rocketpost.errors import RocketpostError
    from rocketpost.server.access.offline import reset_super_user_blocking

    given = sys.stdin.readline().rstrip("\n") if password_stdin else None
    if password_stdin and not given:
        raise click.ClickException("there is no password in the input")
    try:
        reset = reset_super_user_blocking(
            name, config=config, is_name_server=name_server, data=data, secret=given
        )
    except RocketpostError as error:
        raise click.ClickException(str(error)) from None
    for path in reset.paths:
        click.echo(f"super user {name} is ready in {path}", err=True)
    if given is None:
        click.echo(reset.secret)


@rocketpost.command()
@click.option(
    "-b", "--broker", "brokers", multiple=True, metavar="HOST:PORT", help="A broker; repeatable."
)
@click.option(
    "-n", "--name-server", "name_servers", multiple=True, metavar="HOST:PORT",
    help="A name server, or several as in NAMESRV_ADDR; repeatable.",
)  # fmt: skip
@click.option(
    "--timeout",
    "seconds",
    type=click.FloatRange(0.1, 600.0),
    default=5.0,
    show_default=True,
    help="Seconds to wait for an answer.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
def health(
    brokers: tuple[str, ...], name_servers: tuple[str, ...], seconds: float, as_json: bool
) -> None:
    """Ask servers whether they can serve clients.

    The exit code is 0 if all can, 1 if one cannot or does not answer. Without an address, the
    broker and the name server at their usual ports on this machine are asked.
    """
    from rocketpost.admin.health import examine_servers
    from rocketpost.errors import RocketpostError

    if not brokers and not name_servers:
        brokers, name_servers = ("127.0.0.1:10911",), ("127.0.0.1:9876",)
    try:
        found = examine_servers(brokers, name_servers, seconds=seconds)
    except RocketpostError as error:
        raise click.ClickException(str(error)) from None
    if as_json:
        click.echo(json.dumps([each._asdict() for each in found], indent=2))
    else:
        for each in found:
            reasons = f": {'; '.join(each.reasons)}" if each.reasons else ""
            click.echo(f"{each.kind} {each.address} {'not ready' if reasons else 'ready'}{reasons}")
    sys.exit(1 if any(each.reasons for each in found) else 0)


@rocketpost.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print a script that completes the words of rocketpost and mqadmin in SHELL.

    \b
    bash: rocketpost completion bash >> ~/.bashrc
    zsh:  rocketpost completion zsh > DIRECTORY/_rocketpost
          (a DIRECTORY of $fpath, before compinit runs)
    fish: rocketpost completion fish >> ~/.config/fish/config.fish
    """
    from rocketpost.admin.main import mqadmin
    from rocketpost.completion import completion_script

    click.echo(completion_script(shell, ("rocketpost", rocketpost), ("mqadmin", mqadmin)))


@rocketpost.command()
@click.option("--messages", default=30_000, show_default=True, type=click.IntRange(100, 10_000_000))
@click.option(
    "--data",
    type=click.Path(path_type=Path, file_okay=False),
    help="Directory for the data; data/tour, replaced by each tour, if not given.",
)
@click.option(
    "--seed", type=int, help="Seed that decides when the broker is killed; random if not given."
)
@click.option(
    "--spark/--no-spark", "with_spark", default=True, help="Whether Spark archives the topic."
)
def tour(messages: int, data: Path | None, seed: int | None, with_spark: bool) -> None:
    """Start real servers, send and receive through a kill -9, and show what happened."""
    from rocketpost.tour import run_tour

    sys.exit(run_tour(messages=messages, data=data, seed=seed, with_spark=with_spark))


@rocketpost.command()
@click.option(
    "--data",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("data"),
    show_default=True,
    help="Directory in which a broker will keep its store; it need not exist.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
def doctor(data: Path, as_json: bool) -> None:
    """Check this machine: compiled kernel, libraries, limits, disk, Java and Spark.

    Each line says what to do if something is not well. The exit code is 0 if everything works, 1 if
    there are warnings, 2 if a broker or a client cannot work.
    """
    from rocketpost.doctor import examine, exit_code

    findings = examine(data)
    if as_json:
        lines = [{**each._asdict(), "level": each.level.name.lower()} for each in findings]
        click.echo(json.dumps(lines, indent=2))
    else:
        for each in findings:
            click.echo(f"{each.level.name.lower():8} {each.name:11} {each.text}")
            if each.advice:
                click.echo(f"{'':8} {'':11} -> {each.advice}")
    sys.exit(exit_code(findings))


class _GroupCommands(click.Group):
    """The commands of a group of brokers; the client is imported only when one is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands."""
        return [each.name or "" for each in _load_group_commands()]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command."""
        return next((each for each in _load_group_commands() if each.name == cmd_name), None)


def _load_group_commands() -> list[click.Command]:
    from rocketpost.admin.broker_group import COMMANDS

    return COMMANDS


@rocketpost.group(cls=_GroupCommands)
def group() -> None:
    """Show and change a group of brokers that elects its leader."""


@rocketpost.group()
def secure() -> None:
    """Protect a cluster."""


@secure.command("init")
@click.option(
    "--directory",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("secure"),
    show_default=True,
    help="Directory for certificates, keys and settings.",
)
@click.option(
    "--host",
    "hosts",
    multiple=True,
    help="Name or address of a server besides localhost; may be repeated.",
)
def secure_init(directory: Path, hosts: tuple[str, ...]) -> None:
    """Make certificates, the first user, and the settings of a cluster that checks both."""
    from rocketpost.errors import ConfigError
    from rocketpost.server.secure.first_cluster import make_cluster_blocking

    try:
        paths = make_cluster_blocking(directory, hosts=hosts)
    except ConfigError as error:
        raise click.ClickException(str(error)) from None
    for path in paths:
        click.echo(path)
    click.echo(f"Start the servers with: rocketpost up -c {directory / 'broker.conf'}")
    click.echo(
        f"The user admin may do everything. Its password is in {directory / 'conf' / 'tools.yml'}."
    )
    click.echo(
        f"Tools need: ROCKETMQ_HOME={directory.absolute()} ROCKETMQ_TLS_ENABLE=true "
        f"ROCKETMQ_TLS_CONFIG_FILE={directory.absolute() / 'tls.properties'}"
    )


@secure.command("client")
@click.argument("user")
@click.option(
    "--directory",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("secure"),
    show_default=True,
    help="The directory that `rocketpost secure init` has filled.",
)
def secure_client(user: str, directory: Path) -> None:
    """Make a certificate with which a client is USER, without a password.

    The user itself is made by `mqadmin createUser`.
    """
    from rocketpost.errors import ConfigError
    from rocketpost.server.secure.first_cluster import issue_client_blocking

    try:
        paths = issue_client_blocking(directory, user)
    except ConfigError as error:
        raise click.ClickException(str(error)) from None
    for path in paths:
        click.echo(path)


@rocketpost.group(cls=_Pipelines)
def pipeline() -> None:
    """Process many messages with Spark."""
