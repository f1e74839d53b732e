"""The data sources as Spark finds them: ``format("rocketmq")`` and ``format("rocketmq-log")``.

Spark imports this to learn names, and skips every source of everybody if that fails. So everything
that may be missing or takes long (Arrow, the client) is imported when it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from rocketpost.errors import ConfigError
from rocketpost.spark.telling import plainly
from rocketpost.spark.workers.heap import keep_loaded

if TYPE_CHECKING:
    from rocketpost.spark.bodies.packing import Packing
    from rocketpost.spark.log.options import LogOptions
    from rocketpost.spark.options import SourceOptions
    from rocketpost.spark.sink.options import SinkOptions


class RocketMQSource(DataSource):
    """Topics as tables and streams."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "rocketmq"

    @plainly
    def schema(self) -> str:
        """Return every column; a schema of the user's is a projection of it."""
        from rocketpost.spark.bodies.shape import ddl

        return ddl(self._options())

    @plainly
    def reader(self, schema: StructType) -> DataSourceReader:
        """Read what is there."""
        from rocketpost.spark.bodies.shape import Shape
        from rocketpost.spark.source.reader import BatchReader, FilteringReader

        options = self._options()
        # Where Spark's conf is off, a reader that takes filters makes every read fail.
        reader = FilteringReader if options.takes_filters else BatchReader
        return reader(options, Shape(schema, options))

    @plainly
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Read on and on."""
        from rocketpost.spark.bodies.shape import Shape
        from rocketpost.spark.source.reader import StreamReader

        options = self._options()
        return StreamReader(options, Shape(schema, options))

    @plainly
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Send the rows of a frame.

        Raises:
            ConfigError: The mode is overwrite, or a column or an option makes no sense.
        """
        from rocketpost.spark.sink.writer import BatchWriter

        if overwrite:
            raise ConfigError('a topic cannot be overwritten; use .mode("append")')
        return BatchWriter(*self._sink(schema))

    @plainly
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        """Send the rows of a stream."""
        from rocketpost.spark.sink.writer import StreamWriter

        return StreamWriter(*self._sink(schema))

    def _options(self) -> SourceOptions:
        from rocketpost.spark.options import SourceOptions, parsed, with_keys

        keep_loaded()
        return with_keys(parsed(SourceOptions, self.options))

    def _sink(self, schema: StructType) -> tuple[SinkOptions, Packing]:
        from rocketpost.spark.bodies.packing import Packing
        from rocketpost.spark.options import parsed, with_keys
        from rocketpost.spark.sink.options import SinkOptions, check_columns

        keep_loaded()
        options = with_keys(parsed(SinkOptions, self.options))
        packing = Packing(schema, options)
        check_columns(packing.columns, options)
        names = {name.lower() for name, _ in packing.columns}
        if options.is_marked or (options.is_exactly_once and "sequence" not in names):
            options.sink  # noqa: B018 - refuses a sink without a name
        return options, packing


class RocketMQLogSource(DataSource):
    """A store directory as a table."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "rocketmq-log"

    @plainly
    def schema(self) -> str:
        """Return every column; a schema of the user's is a projection of it."""
        from rocketpost.spark.bodies.shape import ddl

        return ddl(self._options())

    @plainly
    def reader(self, schema: StructType) -> DataSourceReader:
        """Read what is there."""
        from rocketpost.spark.bodies.shape import Shape
        from rocketpost.spark.log.reader import FilteringLogReader, LogReader

        options = self._options()
        shape = Shape(schema, options)
        reader = FilteringLogReader if options.takes_filters else LogReader
        return reader(options, shape.decoded, shown=shape.shown)

    def _options(self) -> LogOptions:
        from rocketpost.spark.log.options import LogOptions
        from rocketpost.spark.options import parsed

        keep_loaded()
        return parsed(LogOptions, self.options)


def register(spark: SparkSession) -> None:
    """Make the formats known to a session, where Spark does not find them by itself."""
    spark.dataSource.register(RocketMQSource)
    spark.dataSource.register(RocketMQLogSource)
