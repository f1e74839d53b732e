"""The data sources ``format("rocketmq")`` and ``format("rocketmq-log")``.

Spark imports this module to learn the names, and skips all Python sources if that fails. So modules
that may be missing or take long to import (Arrow, the client) are imported when they are used.
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
from rocketpost.spark.user_errors import user_facing_errors
from rocketpost.spark.workers.preparation import prepare_worker

if TYPE_CHECKING:
    from rocketpost.spark.bodies.sink_bodies import SinkBodies
    from rocketpost.spark.log.options import LogOptions
    from rocketpost.spark.options import SourceOptions
    from rocketpost.spark.sink.options import SinkOptions


class RocketMQSource(DataSource):
    """Topics as tables and streams."""

    def __init__(self, options: dict[str, str]) -> None:
        prepare_worker()
        super().__init__(options)

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "rocketmq"

    @user_facing_errors
    def schema(self) -> str:
        """Return all columns; a schema given by the user is a projection of them."""
        from rocketpost.spark.bodies.shape import ddl

        return ddl(self._options())

    @user_facing_errors
    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader of all present messages."""
        from rocketpost.spark.bodies.shape import Shape
        from rocketpost.spark.source.reader import BatchReader, FilteringReader

        options = self._options()
        # If filter pushdown is off in Spark, every read by a reader that takes filters fails.
        reader = FilteringReader if options.takes_filters else BatchReader
        return reader(options, Shape(schema, options))

    @user_facing_errors
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Return a reader of present and future messages."""
        from rocketpost.spark.bodies.shape import Shape
        from rocketpost.spark.source.reader import StreamReader

        options = self._options()
        return StreamReader(options, Shape(schema, options))

    @user_facing_errors
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return a writer that sends the rows of a frame.

        Raises:
            ConfigError: The mode is overwrite, or a column or an option makes no sense.
        """
        from rocketpost.spark.sink.writer import BatchWriter

        if overwrite:
            raise ConfigError('a topic cannot be overwritten; use .mode("append")')
        return BatchWriter(*self._sink(schema))

    @user_facing_errors
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        """Return a writer that sends the rows of a stream."""
        from rocketpost.spark.sink.writer import StreamWriter

        return StreamWriter(*self._sink(schema))

    def _options(self) -> SourceOptions:
        from rocketpost.spark.options import SourceOptions, parse_options, with_credentials
        from rocketpost.spark.tls_options import with_tls

        prepare_worker()
        return with_tls(with_credentials(parse_options(SourceOptions, self.options)))

    def _sink(self, schema: StructType) -> tuple[SinkOptions, SinkBodies]:
        from rocketpost.spark.bodies.sink_bodies import SinkBodies
        from rocketpost.spark.options import parse_options, with_credentials
        from rocketpost.spark.sink.options import SinkOptions, check_columns
        from rocketpost.spark.tls_options import with_tls

        prepare_worker()
        options = with_tls(with_credentials(parse_options(SinkOptions, self.options)))
        packing = SinkBodies(schema, options)
        check_columns(packing.columns, options)
        names = {name.lower() for name, _ in packing.columns}
        if options.is_marked or (options.is_exactly_once and "sequence" not in names):
            options.check_sink_name()
        return options, packing


class RocketMQLogSource(DataSource):
    """A store directory as a table."""

    def __init__(self, options: dict[str, str]) -> None:
        prepare_worker()
        super().__init__(options)

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "rocketmq-log"

    @user_facing_errors
    def schema(self) -> str:
        """Return all columns; a schema given by the user is a projection of them."""
        from rocketpost.spark.bodies.shape import ddl

        return ddl(self._options())

    @user_facing_errors
    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader of all present messages."""
        from rocketpost.spark.bodies.shape import Shape
        from rocketpost.spark.log.reader import FilteringLogReader, LogReader

        options = self._options()
        shape = Shape(schema, options)
        reader = FilteringLogReader if options.takes_filters else LogReader
        return reader(options, shape.decoded, shown=shape.convert)

    def _options(self) -> LogOptions:
        from rocketpost.spark.log.options import LogOptions
        from rocketpost.spark.options import parse_options

        prepare_worker()
        return parse_options(LogOptions, self.options)


def register(spark: SparkSession) -> None:
    """Add the formats to a session, if Spark does not find them by itself.

    Scans of them are then also planned without a second copy of each row.
    """
    from rocketpost.spark.scan_plans import save_copies

    spark.dataSource.register(RocketMQSource)
    spark.dataSource.register(RocketMQLogSource)
    save_copies(spark)
