"""An archive of Spark's classes that halves the start time of JVMs.

JVMs map the archive instead of loading classes. ``java_options()`` makes it on first use, which
takes as long as one start, and keeps it for all later runs on this machine.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

import pyspark

from rocketpost.spark.session import find_java, make_session

_QUIET: Final = "-Xlog:cds=off -Xlog:cds+dynamic=off"


def java_options(*, make: bool = True) -> str:
    """Return the JVM options that use the archive; empty if there is none.

    Args:
        make: Whether to make a missing archive.
    """
    path = _path()
    if not path.exists() and make:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # others wait for the first process
            if not path.exists():
                _make(path)
    return f"-XX:SharedArchiveFile={path} {_QUIET}" if path.exists() else ""


def _make(path: Path) -> None:
    fresh = path.with_suffix(f".{os.getpid()}")
    subprocess.run(
        [sys.executable, "-m", __name__, str(fresh)],
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    fresh.replace(path)


def _path() -> Path:
    """Return the path of the archive for this Java and this Spark."""
    home = find_java() or os.environ.get("JAVA_HOME") or shutil.which("java") or ""
    java = hashlib.sha256(os.path.realpath(home).encode()).hexdigest()[:12]
    folder = Path(tempfile.gettempdir()) / f"rocketpost-java-{os.getuid()}"
    return folder / f"classes-{pyspark.__version__}-{java}.jsa"


def _record(path: str) -> None:
    """Use Spark briefly in a JVM that lists its loaded classes at its end."""
    with tempfile.TemporaryDirectory() as folder:
        options = {
            "spark.driver.extraJavaOptions": f"-XX:ArchiveClassesAtExit={path} {_QUIET}",
            "spark.driver.memory": "1g",
            "spark.sql.warehouse.dir": folder,
        }
        spark = make_session("classes", master="local[2]", options=options)
        spark.range(100).selectExpr("id", "string(id % 7) AS name").write.parquet(f"{folder}/a")
        spark.read.parquet(f"{folder}/a").groupBy("name").count().collect()
        source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load()
        query = source.writeStream.format("noop").option("checkpointLocation", f"{folder}/b")
        query.trigger(availableNow=True).start().awaitTermination()
        gateway = spark.sparkContext._gateway
        spark.stop()
        assert gateway is not None
        gateway.proc.stdin.close()  # tells the JVM to end
        gateway.proc.wait()


if __name__ == "__main__":
    _record(sys.argv[1])
