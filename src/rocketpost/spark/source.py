"""The data sources as Spark finds them: ``format("rocketmq")`` and ``format("rocketmq-log")``."""

from __future__ import annotations

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from rocketpost.spark import columns
from rocketpost.spark.columns import Column
from rocketpost.spark.log_options import LogOptions
from rocketpost.spark.options import SourceOptions, parsed


class RocketMQSource(DataSource):
    """Topics as tables and streams."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "rocketmq"

    def schema(self) -> str:
        """Return every column; a schema of the user's is a projection of it."""
        return columns.ddl(columns.full(self._options().properties_format))

    def reader(self, schema: StructType) -> DataSourceReader:
        """Read what is there."""
        from rocketpost.spark.reader import BatchReader

        return BatchReader(self._options(), _columns(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Read on and on."""
        from rocketpost.spark.reader import StreamReader

        return StreamReader(self._options(), _columns(schema))

    def _options(self) -> SourceOptions:
        return parsed(SourceOptions, self.options)


class RocketMQLogSource(DataSource):
    """A store directory as a table."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "rocketmq-log"

    def schema(self) -> str:
        """Return every column; a schema of the user's is a projection of it."""
        return columns.ddl(columns.full(self._options().properties_format))

    def reader(self, schema: StructType) -> DataSourceReader:
        """Read what is there."""
        from rocketpost.spark.log_reader import LogReader

        return LogReader(self._options(), _columns(schema))

    def _options(self) -> LogOptions:
        return parsed(LogOptions, self.options)


def register(spark: SparkSession) -> None:
    """Make the formats known to a session, where Spark does not find them by itself."""
    spark.dataSource.register(RocketMQSource)
    spark.dataSource.register(RocketMQLogSource)


def _columns(schema: StructType) -> tuple[Column, ...]:
    return columns.projected([(each.name, each.dataType.simpleString()) for each in schema])
