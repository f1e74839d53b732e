"""Common parts of the pipeline commands, so that all of them behave the same.

``@pipeline_command(NAME)`` adds the common options (``--config``, ``--dry-run``, ``--json``,
``--master``, ``--conf``) as one ``Run``, turns failures into one line, and sets the exit status: 0
for a complete run, 1 if something failed or was found, 2 for a wrong option. The report goes to
standard output, progress and failures to standard error.
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
from rocketpost.spark.pipelines.progress import ShownWork, Tasks, count_running_tasks
from rocketpost.spark.session import LOCAL_MASTER, ignore_sigterm_in_jvm, make_session

logger = logging.getLogger(__name__)

FAILURES: Final = (RocketpostError, PySparkException, Py4JError, OSError)
"""Errors of the work. A ConnectionError is about Spark's JVM; those of brokers are our own."""
_STOPPED: Final = "stopped before everything was done"
_GOES_ON: Final = "; start it again to continue from there"
_ENDED: Final = "Spark ended before everything was done: its Java process has exited"
_NO_ANSWER: Final = "An error occurred while calling"
_STDOUT: Final = "-"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_CANCEL_SECONDS: Final = 0.3
_RAISED: Final = re.compile(r"[A-Za-z_][\w.]*(Error|Exception): ")
"""The last line of a Python traceback."""
_CAUSE: Final = re.compile(r"(Caused by)?: ")
"""Causes in Java's stack traces; the root cause is the last."""

Command = Callable[..., None]


class Run:
    """One run of a command: the common options, and the outputs."""

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
        """Whether the same command continues the work after a signal."""
        self._json_file = json_file
        self._master = master
        self._settings = _settings(conf)
        self._report: dict[str, Any] = {}
        self._started = time.monotonic()
        self._stopping = threading.Event()
        self._notes = Console(stderr=True, highlight=False)
        # Other output must not end up in the middle of the JSON.
        self._out = Console(stderr=json_file == _STDOUT, highlight=False)

    @property
    def seconds(self) -> float:
        """The time since the run began."""
        return time.monotonic() - self._started

    @property
    def is_stopping(self) -> bool:
        """Whether SIGTERM or SIGINT asked the run to end."""
        return self._stopping.is_set()

    @property
    def stopped(self) -> str:
        """The message for a run that ends early."""
        return _STOPPED + (_GOES_ON if self.can_go_on else "")

    @property
    def width(self) -> int:
        """The number of characters in a line of the summary."""
        return self._out.width

    def check_path(self, option: str, path: str) -> None:
        """Check that Spark can read a path, if it is on this machine.

        Raises:
            ConfigError: The path cannot be read.
        """
        place = local_path(path, self._settings)
        if place is not None:
            check_readable(option, place)

    def pause(self, seconds: float) -> None:
        """Wait, but return at once when the run should end."""
        self._stopping.wait(seconds)

    def say(self, text: RenderableType, *, markup: bool = True) -> None:
        """Print a part of the summary."""
        self._out.print(text, markup=markup, soft_wrap=isinstance(text, str))

    def conclude(self, report: Mapping[str, Any], *, is_whole: bool = True) -> None:
        """Set the report for ``--json``; a run that is not complete exits with 1."""
        self._report = dict(report)
        self.is_whole = is_whole

    @contextlib.contextmanager
    def session(self) -> Iterator[SparkSession]:
        """Yield a Spark session with the user's settings.

        A signal cancels its jobs, so that calls that wait for them fail at once, and sets
        ``is_stopping``. An existing session is used, and not stopped.

        Raises:
            ConfigError: Java is missing.
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
                _stop_on_signals(self._stopping),
                _cancel_jobs(spark, self._stopping, is_quiet=is_ours),
            ):
                yield spark
        finally:
            if is_ours:
                try:
                    spark.stop()
                except (Py4JError, ConnectionError) as error:  # its JVM got the signal as well
                    logger.debug("Spark had ended already: %s", error)

    def progress(self, spark: SparkSession, title: str) -> ShownWork:
        """Show the progress of work while the returned context is open."""

        def look() -> Tasks:
            return count_running_tasks(spark.sparkContext.statusTracker())

        return ShownWork(self._notes, title, look=look)

    def write(self, error: str | None = None) -> None:
        """Write the report for programs, if requested."""
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
    """Add the common options to a function that takes a :class:`Run` and its own options."""

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
            with report_failures():
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

        # Click shows options in the reverse of this order: the common ones come last.
        command.__click_params__ = []  # type: ignore[attr-defined]
        for option in _SHARED:
            option(command)
        command.__click_params__ += getattr(function, "__click_params__", [])  # type: ignore[attr-defined]
        return command

    return decorate


def _check_writable(
    context: click.Context, option: click.Parameter, value: str | None
) -> str | None:
    """Check now, and not after the work, that the report can be written."""
    if value is not None and value != _STDOUT and not Path(value).absolute().parent.is_dir():
        raise click.BadParameter(f"there is no directory {Path(value).parent}")
    return value


html_option = click.option(
    "--html",
    "html_file",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    callback=_check_writable,
    help="Write the report as an HTML page to this file.",
)


_SHARED: Final = (
    click.option(
        "--conf",
        multiple=True,
        metavar="KEY=VALUE",
        help="A setting of Spark, as KEY=VALUE; may be repeated.",
    ),
    click.option("--master", default=LOCAL_MASTER, show_default=True, help="Master URL of Spark."),
    click.option(
        "--json",
        "json_file",
        type=click.Path(dir_okay=False, writable=True, allow_dash=True),
        callback=_check_writable,
        help="Write the report as JSON to this file; - is standard output.",
    ),
    click.option("--dry-run", is_flag=True, help="Only show what would be done."),
    config_option,
)


class _Time(click.ParamType[int]):
    """Milliseconds since the epoch, or a time such as 2026-11-16T12:00:00 (UTC without a zone)."""

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
    "--since", type=_Time(), help="Stored at this time or later: ms, or a UTC time."
)
until_option = click.option("--until", type=_Time(), help="Stored before.")


@contextlib.contextmanager
def report_failures() -> Iterator[None]:
    """End a command with one line about the failure."""
    try:
        yield
    except ConfigError as error:
        raise click.UsageError(str(error)) from None
    except FAILURES as error:
        raise click.ClickException(reason(error)) from None


def reason(error: Exception) -> str:
    """Return the reason of a failure in one line; for Spark's errors, our own error inside."""
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
    """Return whether an error says that Spark's JVM is gone."""
    if isinstance(error, (ConnectionError, Py4JNetworkError)):
        return True
    is_of_py4j = isinstance(error, Py4JError) and not isinstance(error, Py4JJavaError)
    return is_of_py4j and str(error).startswith(_NO_ANSWER)


@contextlib.contextmanager
def _stop_on_signals(stopping: threading.Event) -> Iterator[None]:
    """Let SIGTERM and SIGINT set an event, once. A second signal ends the process as usual."""
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
def _cancel_jobs(
    spark: SparkSession, stopping: threading.Event, *, is_quiet: bool
) -> Iterator[None]:
    """Cancel Spark's jobs while an event is set, in a thread of its own.

    Spark's messages about cancelled jobs are not errors, and are suppressed if requested.
    """
    over = threading.Event()

    def cancel() -> None:
        is_heard = True
        while not over.wait(_CANCEL_SECONDS):
            if stopping.is_set():  # repeatedly, because the next job may have begun
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
