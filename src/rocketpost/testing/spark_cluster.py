"""A standalone Spark cluster of real processes: a master and workers, each with its own JVM."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

import pyspark

from rocketpost.spark.session import find_java
from rocketpost.testing.process import ServerProcess, free_port
from rocketpost.testing.process_tree import Process, session_of

MASTER_READY: Final = "I have been elected leader"
WORKER_READY: Final = "Successfully registered with master"
READY_SECONDS: Final = 300.0
_HOME: Final = Path(pyspark.__file__).parent
_ADDRESS: Final = "127.0.0.1"
_EXEC: Final = "import os, sys; os.execv(sys.argv[1], sys.argv[1:])"
_DAEMONS: Final = {
    "SPARK_DAEMON_MEMORY": "256m",
    # A test may kill executors any number of times.
    "SPARK_MASTER_OPTS": "-Dspark.deploy.maxExecutorRetries=-1",
}


class SparkCluster:
    """A master and workers. Use as a context manager.

    Args:
        directory: The directory for the output of executors.
        workers: Number of workers.
        cores: Number of concurrent tasks per worker.
    """

    def __init__(self, directory: Path, *, workers: int, cores: int = 1) -> None:
        port = free_port()
        self.master = f"spark://{_ADDRESS}:{port}"
        self.folders = [directory / f"worker-{number}" for number in range(workers)]
        """Directories with the output of each worker's executors."""
        words = ["--host", _ADDRESS, "--port", str(port), "--webui-port", "0"]
        self._master = _server("master.Master", words, MASTER_READY)
        self._workers = [
            _server("worker.Worker", _worker_words(self.master, folder, cores), WORKER_READY)
            for folder in self.folders
        ]

    def __enter__(self) -> SparkCluster:
        with contextlib.ExitStack() as stack:
            for server in (self._master, *self._workers):
                stack.callback(_stop, server)
                server.start(seconds=READY_SECONDS)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables of a driver."""
        return _environment()

    def processes(self) -> list[Process]:
        """Return the workers, their executors and the executors' Python processes."""
        return [each for worker in self._workers for each in session_of(worker.pid)]


def _worker_words(master: str, folder: Path, cores: int) -> list[str]:
    folder.mkdir(parents=True)
    sizes = ["--cores", str(cores), "--memory", "1g", "--webui-port", "0"]
    return [master, "--host", _ADDRESS, *sizes, "--work-dir", str(folder)]


def _server(name: str, words: list[str], ready: str) -> ServerProcess:
    program = _HOME / "bin" / "spark-class"
    return ServerProcess(
        [str(program), f"org.apache.spark.deploy.{name}", *words],
        ready=ready,
        environment=_environment() | _DAEMONS,
        program=["-c", _EXEC],
    )


def _environment() -> dict[str, str]:
    values = {"SPARK_LOCAL_IP": _ADDRESS, "SPARK_HOME": str(_HOME)}
    java_home = find_java()
    if java_home is not None:
        values["JAVA_HOME"] = java_home
    # Workers pass their environment to executors.
    return values | {"PATH": os.environ.get("PATH", "")}


def _stop(server: ServerProcess) -> None:
    """Stop a worker with its executors, which would survive a SIGKILL of the worker."""
    if server.is_running:
        server.stop()
    server.kill()
