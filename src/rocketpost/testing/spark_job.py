"""A Spark job that may be killed at any time: ``python -m rocketpost.testing.spark_job FILE``.

It copies one topic to another with a stream and archives it to a lake, both in one driver. Failed
work is started again. It ends with 0 when the file ``stop`` exists and both have all messages of
that moment. FILE holds a ``Job`` as JSON.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from rocketpost.errors import RocketpostError
from rocketpost.spark.options import SourceOptions
from rocketpost.spark.pipelines.archive import ArchiveConfig, archive
from rocketpost.spark.session import make_session
from rocketpost.testing.class_archive import java_options

logger = logging.getLogger(__name__)

READY: Final = "the job is ready"
DONE: Final = "the job is done"
_AGAIN_SECONDS: Final = 0.2
_JAVA: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_OPTIONS: Final = {
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": _JAVA,
    "spark.executor.extraJavaOptions": _JAVA,
    "spark.sql.shuffle.partitions": "1",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The source and destinations of the copy."""

    name_servers: str
    source: str
    target: str
    directory: str
    delivery: str
    offsets_max: int
    rate: int
    """Rows per second and task, so that tasks last long enough to be killed."""
    master: str = "local[6,8]"
    options: dict[str, str] = field(default_factory=dict)
    """Further Spark settings."""

    @property
    def lake(self) -> str:
        """The path of the archive."""
        return f"{self.directory}/lake"

    @property
    def checkpoint(self) -> str:
        """The path of the stream's checkpoint."""
        return f"{self.directory}/checkpoint"

    def write(self, path: Path) -> None:
        """Write the job file."""
        path.write_text(json.dumps(dataclasses.asdict(self)))


def start_copy(spark: SparkSession, job: Job) -> StreamingQuery:
    """Start the stream."""
    source = (
        spark.readStream.format("rocketmq")
        .option("nameServer", job.name_servers)
        .option("topic", job.source)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", job.offsets_max)
        .load()
    )
    return (
        source.selectExpr("body", "properties['__SHARDINGKEY'] AS shardingKey")
        .writeStream.format("rocketmq")
        .option("nameServer", job.name_servers)
        .option("topic", job.target)
        .option("delivery", job.delivery)
        .option("rateLimitPerTask", job.rate)
        .option("checkpointLocation", job.checkpoint)
        .start()
    )


def run(job: Job) -> None:
    """Copy and archive until told to stop."""
    folder = {"spark.sql.warehouse.dir": f"{job.directory}/warehouse"}
    options = _OPTIONS | folder | job.options
    if archive_options := java_options(make=False):
        for side in ("driver", "executor"):
            key = f"spark.{side}.extraJavaOptions"
            options[key] = f"{options.get(key, '')} {archive_options}".strip()
    spark = make_session("campaign", master=job.master, options=options)
    spark.sparkContext.setLogLevel("OFF")
    config = ArchiveConfig(
        source=SourceOptions(name_servers=job.name_servers, topic=job.source),
        lake=job.lake,
        offsets_max=job.offsets_max * 2,
    )
    copy: StreamingQuery | None = None
    print(READY, flush=True)
    while True:
        is_last = Path(job.directory, "stop").exists()
        try:
            if copy is None or not copy.isActive:
                copy = start_copy(spark, job)
            archive(spark, config)
            if is_last:
                copy.processAllAvailable()
                copy.stop()
                break
        except (RocketpostError, PySparkException) as error:
            logger.warning("starting again after an error: %s", str(error).partition("\n")[0])
        time.sleep(_AGAIN_SECONDS)
    spark.stop()
    print(DONE, flush=True)


if __name__ == "__main__":
    run(Job(**json.loads(Path(sys.argv[1]).read_text())))
