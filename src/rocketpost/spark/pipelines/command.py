"""What the commands of pipelines share, so that all of them behave the same.

``@pipeline_command(NAME)`` gives a command the options of all (``--config``, ``--dry-run``,
``--json``, ``--master``, ``--conf``) as one ``Run``, turns failures into one line, and lets it exit
with 0 when all is whole, 1 when something failed or was found, and 2 when an option makes no sense.
The report goes to standard output, progress and failures to standard error.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import FrameType
from typing import Any, Final

import click
from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from rich.console import Console, RenderableType

from rocketpost.errors import ConfigError, RocketpostError
from rocketpost.spark.pipelines.options_file import config_option
from rocketpost.spark.pipelines.paths import check_readable, local_path
from rocketpost.spark.pipelines.progress import Shown, Tasks, running_tasks
from rocketpost.spark.session import LOCAL_MASTER, ignore_sigterm_in_jvm, make_session

logger = logging.getLogger(__name__)

FAILURES: Final = (RocketpostError, PySparkException, Py4JError, OSError)
"""What a work fails with; a connection is one to Spark's JVM, for those to brokers are ours."""
_STOPPED: Final = "stopped before all was done"
_GOES_ON: Final = "; start it again and it goes on from there"
_ENDED: Final = "Spark ended before all was done: its Java process is gone"
_NO_ANSWER: Final = "An error occurred while calling"
_STDOUT: Final = "-"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_CANCEL_SECONDS: Final = 0.3
_RAISED: Final = re.compile(r"[A-Za-z_][\w.]*(Error|Exception): ")
"""How a Python traceback ends."""
_CAUSE: Final = re.compile(r"(Caused by)?: ")
"""How Java names what went wrong; the first cause comes last."""

Command = Callable[..., None]


class Run:
    """One run of a command: the options that all commands have, and where its words go."""

    def __init__(
        self,
        name: str,
        *,
        dry_run: bool = False,
        json_file: str | None = None,
        master: str = LOCAL_MASTER,
        conf: tuple[str, ...] = (),
    ) -> None:
        self.name = name
        self.dry_run = dry_run
        self.is_whole = True
        self.can_go_on = False
        """Whether the same command again does not begin anew, if a signal ends this one."""
        self._json_file = json_file
        self._master = master
        self._settings = _settings(conf)
        self._report: dict[str, Any] = {}
        self._started = time.monotonic()
        self._stopping = threading.Event()
        self._notes = Console(stderr=True, highlight=False)
        # What is printed must not end up in the middle of the JSON.
        self._out = Console(stderr=json_file == _STDOUT, highlight=False)

    @property
    def seconds(self) -> float:
        """How long it has been running."""
        return time.monotonic() - self._started

    @property
    def is_stopping(self) -> bool:
        """Whether SIGTERM or SIGINT asks it to end."""
        return self._stopping.is_set()

    @property
    def stopped(self) -> str:
        """What to say if it ends before all is done."""
        return _STOPPED + (_GOES_ON if self.can_go_on else "")

    @property
    def width(self) -> int:
        """How many characters of the summary fit a line."""
        return self._out.width

    def check_path(self, option: str, path: str) -> None:
        """Refuse what Spark could not read; what is not on this machine it must find out itself.

        Raises:
            ConfigError: It is on this machine, and cannot be read.
        """
        place = local_path(path, self._settings)
        if place is not None:
            check_readable(option, place)

    def pause(self, seconds: float) -> None:
        """Wait, but not when it is to end."""
        self._stopping.wait(seconds)

    def say(self, text: RenderableType, *, markup: bool = True) -> None:
        """Print a part of the summary."""
        self._out.print(text, markup=markup, soft_wrap=isinstance(text, str))

    def conclude(self, report: Mapping[str, Any], *, is_whole: bool = True) -> None:
        """Say what was done, for ``--json``; a run that is not whole exits with 1."""
        self._report = dict(report)
        self.is_whole = is_whole

    @contextlib.contextmanager
    def session(self) -> Iterator[SparkSession]:
        """Have a session of Spark, with settings of the user's.

        A signal cancels its jobs, so that what waits for them fails at once, and sets
        ``is_stopping``. A session that was there before is used, and left alone.

        Raises:
            ConfigError: There is no Java.
        """
        is_ours = SparkSession.getActiveSession() is None
        with self._notes.status("starting Spark"):
            spark = make_session(
                f"rocketpost {self.name}", master=self._master, options=self._settings
            )
            if is_ours:
                ignore_sigterm_in_jvm(spark)
        try:
            with (
                _asked_to_stop(self._stopping),
                _cancelling(spark, self._stopping, is_quiet=is_ours),
            ):
                yield spark
        finally:
            if is_ours:
                try:
                    spark.stop()
                except (Py4JError, ConnectionError) as error:  # its JVM got the signal as well
                    logger.debug("Spark had ended already: %s", error)

    def progress(self, spark: SparkSession, title: str) -> Shown:
        """Show how far a work is, while the returned context lasts."""

        def look() -> Tasks:
            return running_tasks(spark.sparkContext.statusTracker())

        return Shown(self._notes, title, look=look)

    def write(self, error: str | None = None) -> None:
        """Write the report for programs, if that was asked for."""
        if self._json_file is None:
            return
        value = {
            "pipeline": self.name,
            "dryRun": self.dry_run,
            "ok": self.is_whole and error is None,
            "error": error,
            "seconds": round(self.seconds, 3),
            **self._report,
        }
        text = json.dumps(value, indent=1, default=str) + "\n"
        if self._json_file == _STDOUT:
            click.echo(text, nl=False)
        else:
            Path(self._json_file).write_text(text, encoding="utf-8")


def pipeline_command(name: str) -> Callable[[Command], Command]:
    """Give a function that takes a :class:`Run` and its own options those of all pipelines."""

    def decorate(function: Command) -> Command:
        @functools.wraps(function)
        def command(
            *,
            dry_run: bool,
            json_file: str | None,
            master: str,
            conf: tuple[str, ...],
            **own: Any,
        ) -> None:
            with failures():
                run = Run(name, dry_run=dry_run, json_file=json_file, master=master, conf=conf)
                try:
                    function(run, **own)
                except FAILURES as error:
                    run.write(run.stopped if run.is_stopping else reason(error))
                    if run.is_stopping:
                        raise click.ClickException(run.stopped) from None
                    raise
                run.write()
            if not run.is_whole:
                raise click.exceptions.Exit(1)

        # Click shows options in the reverse of this order: those of all commands come last.
        command.__click_params__ = []  # type: ignore[attr-defined]
        for option in _SHARED:
            option(command)
        command.__click_params__ += getattr(function, "__click_params__", [])  # type: ignore[attr-defined]
        return command

    return decorate


def _writable(context: click.Context, option: click.Parameter, value: str | None) -> str | None:
    """Refuse a place for a report now and not when the work is done."""
    if value is not None and value != _STDOUT and not Path(value).absolute().parent.is_dir():
        raise click.BadParameter(f"there is no directory {Path(value).parent}")
    return value


html_option = click.option(
    "--html",
    "html_file",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    callback=_writable,
    help="Write a page here.",
)


_SHARED: Final = (
    click.option(
        "--conf", multiple=True, metavar="KEY=VALUE", help="A setting of Spark's; may be repeated."
    ),
    click.option("--master", default=LOCAL_MASTER, show_default=True, help="Where Spark runs."),
    click.option(
        "--json",
        "json_file",
        type=click.Path(dir_okay=False, writable=True, allow_dash=True),
        callback=_writable,
        help="Write the report here, for programs; - is standard output.",
    ),
    click.option("--dry-run", is_flag=True, help="Only say what would be done."),
    config_option,
)


class _Time(click.ParamType[int]):
    """Milliseconds since the epoch, or a time such as 2026-11-16T12:00:00 (UTC if it says none)."""

    name = "time"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        if isinstance(value, int):
            return value
        text = str(value)
        if text.isdecimal():
            return int(text)
        try:
            time = datetime.fromisoformat(text)
        except ValueError:
            self.fail(f"{text!r} is neither milliseconds nor a time like 2026-11-16T12:00:00")
        if time.tzinfo is None:
            time = time.replace(tzinfo=UTC)
        return (time - _EPOCH) // timedelta(milliseconds=1)


since_option = click.option(
    "--since", type=_Time(), help="Stored then or later: ms, or a UTC time."
)
until_option = click.option("--until", type=_Time(), help="Stored before.")


@contextlib.contextmanager
def failures() -> Iterator[None]:
    """Let a command end with one line that says what failed."""
    try:
        yield
    except ConfigError as error:
        raise click.UsageError(str(error)) from None
    except FAILURES as error:
        raise click.ClickException(reason(error)) from None


def reason(error: Exception) -> str:
    """Return why something failed, in one line; of Spark's errors the one that was ours."""
    if isinstance(error, RocketpostError):
        return str(error)
    if _is_gone(error):
        return _ENDED
    if isinstance(error, OSError):
        return str(error)
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    ours = [line for line in lines if line.startswith("rocketpost.")]
    if ours:
        why = ours[-1].partition(": ")[2]
    else:
        raised = [line for line in lines if _RAISED.match(line)]
        raised = raised or [_CAUSE.sub("", line, count=1) for line in lines if _CAUSE.match(line)]
        why = (raised[-1:] or lines[:1] or ["no reason given"])[0]
    return f"Spark failed: {why}"


def _is_gone(error: Exception) -> bool:
    """Tell whether an error says that nobody answers in place of Spark's JVM."""
    if isinstance(error, (ConnectionError, Py4JNetworkError)):
        return True
    is_of_py4j = isinstance(error, Py4JError) and not isinstance(error, Py4JJavaError)
    return is_of_py4j and str(error).startswith(_NO_ANSWER)


@contextlib.contextmanager
def _asked_to_stop(stopping: threading.Event) -> Iterator[None]:
    """Let SIGTERM and SIGINT set an event, once: a second one ends the process as usual."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    # After Spark has started: it sets a handler of its own.
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

    def stop(number: int, frame: FrameType | None) -> None:
        stopping.set()
        signal.signal(number, signal.SIG_DFL)

    for number in before:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _cancelling(
    spark: SparkSession, stopping: threading.Event, *, is_quiet: bool
) -> Iterator[None]:
    """Cancel Spark's jobs as long as an event is set, from a thread of its own.

    What Spark says of them after that is no error, and not said if it is to be quiet.
    """
    over = threading.Event()

    def cancel() -> None:
        is_heard = True
        while not over.wait(_CANCEL_SECONDS):
            if stopping.is_set():  # again and again: the next job may have begun meanwhile
                with contextlib.suppress(Py4JError, OSError):  # then Spark is gone already
                    if is_heard and is_quiet:
                        spark.sparkContext.setLogLevel("OFF")
                        is_heard = False
                    spark.sparkContext.cancelAllJobs()

    thread = threading.Thread(target=cancel, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _settings(conf: tuple[str, ...]) -> dict[str, str]:
    settings = {}
    for pair in conf:
        key, separator, value = pair.partition("=")
        if not separator or not key:
            raise ConfigError(f"--conf {pair} must be KEY=VALUE")
        settings[key] = value
    return settings
