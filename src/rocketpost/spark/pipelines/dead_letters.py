"""Dead letters: why they died, and those that deserve it sent to their topics again.

Letters are told apart by what their handler raised, its text, where they came from and when they
died. In texts numbers count as one, so that "no customer 17" and "no customer 18" are one cause.
"""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from rocketpost.errors import ClientError, ConfigError, Fault, RouteNotFound
from rocketpost.model import properties as names
from rocketpost.model.names import dlq_topic, group_problem, is_system_group
from rocketpost.spark.broker_session import BrokerSession
from rocketpost.spark.options import SourceOptions
from rocketpost.spark.pipelines import timeline
from rocketpost.spark.pipelines.copying import CopyConfig, copies, origins, send, sending_tasks
from rocketpost.spark.pipelines.dead_letter_report import Cause, LetterReport, Redriven, Text
from rocketpost.spark.pipelines.selection import Found, Selection, select
from rocketpost.spark.pipelines.targets import CANCELLED, Targets
from rocketpost.spark.records.columns import all_columns, ddl
from rocketpost.spark.suggestions import list_similar

logger = logging.getLogger(__name__)

UNKNOWN: Final = "unknown"
REDRIVES: Final = "REDRIVES"
"""How often a message was sent again from dead letters."""
REDRIVES_MAX: Final = 3
_CAUSE: Final = "CONSUME_FAILURE"
_TEXT: Final = "CONSUME_FAILURE_TEXT"
_NUMBERS: Final = r"\b(0x[0-9a-fA-F]+|[0-9a-fA-F-]{16,}|[0-9][0-9.,:]*)"
_SHOWN: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Which dead letters; what is None does not matter.

    Attributes:
        cause: A part of the exception's class or text, in any case.
        topic: Where they came from.
        key: One of their keys.
        start_ms: They died then or later.
        end_ms: They died before.
    """

    cause: str | None = None
    topic: str | None = None
    key: str | None = None
    start_ms: int | None = None
    end_ms: int | None = None


class DeadLetters:
    """Some dead letters of a group, as they are now: what dies later is not among them.

    ::

        letters = DeadLetters(spark, "127.0.0.1:9876", "billing", Choice(cause="KeyError"))
        print(letters.report().causes)
        letters.redrive(CopyConfig(name_servers="127.0.0.1:9876", name="fix-417"))

    Args:
        spark: The session.
        name_servers: ``host:port;host:port``.
        group: Whose dead letters.
        choice: Which of them; all if None.
        redrives_max: Letters that were sent again so often are not sent again any more.

    Raises:
        ConfigError: The group's name is illegal, or no broker knows the group.
        ClientError: Brokers cannot be asked.
    """

    def __init__(
        self,
        spark: SparkSession,
        name_servers: str,
        group: str,
        choice: Choice | None = None,
        *,
        redrives_max: int = REDRIVES_MAX,
    ) -> None:
        if problem := group_problem(group):
            raise ConfigError(problem)
        if redrives_max < 1:
            raise ConfigError("at most how many redrives must be at least 1")
        self.group = group
        self.choice = choice or Choice()
        self.redrives_max = redrives_max
        self._selection = Selection(
            topics=(dlq_topic(group),),
            name_servers=name_servers,
            start_ms=self.choice.start_ms,
            end_ms=self.choice.end_ms,
            keys=(self.choice.key,) if self.choice.key is not None else (),
        )
        try:
            found = select(spark, self._selection)
        except RouteNotFound:  # the topic comes with the first letter
            _check_known(name_servers, group)
            none = spark.createDataFrame([], ddl(all_columns()))
            found = Found(none, none)
        self._found = Found(*(chosen(explained(frame), self.choice) for frame in found))

    @property
    def frame(self) -> DataFrame:
        """The letters, with ``origin``, ``cause``, ``causeText`` and ``redrives``."""
        return self._found.whole

    def report(self) -> LetterReport:
        """Return why they died, from where and when."""
        letters = self._found.narrow.select(
            "origin", "cause", "causeText", "redrives", f.unix_millis("storeTimestamp").alias("ms")
        ).persist()
        try:
            causes = tuple(_causes(letters))
            first = min((cause.first_ms for cause in causes), default=None)
            last = max((cause.last_ms for cause in causes), default=None)
            return LetterReport(
                group=self.group,
                letters=sum(cause.letters for cause in causes),
                without_origin=sum(cause.letters for cause in causes if cause.topic is None),
                worn_out=letters.filter(f.col("redrives") >= self.redrives_max).count(),
                redrives_max=self.redrives_max,
                first_ms=first,
                last_ms=last,
                causes=causes,
                texts=tuple(_texts(letters)),
                timeline=timeline.timeline(letters, "ms", first, last),
            )
        finally:
            letters.unpersist()

    def redrive(
        self,
        config: CopyConfig,
        *,
        dry_run: bool = False,
        on_progress: Callable[[int, int], None] | None = None,
        is_over: Callable[[], bool] = lambda: False,
    ) -> Redriven:
        """Send them to where they came from, each once for this name and choice.

        Those whose origin is not known are left alone, unless the configuration names a topic, and
        so are those that were sent again too often. What died since the last run of this name is
        sent as well.

        Raises:
            ClientError: Brokers cannot be asked.
            PySparkException: A task failed for good; run it again to go on.
        """
        is_due = f.col("redrives") < self.redrives_max
        if config.topic is None:
            is_due = is_due & f.col("origin").isNotNull()
        queues = origins(self._found.narrow.filter(is_due))
        words = json.dumps([self._selection.words, dataclasses.astuple(self.choice)])
        due = sum(origin.messages for origin in queues)
        if not queues:
            return Redriven(name=config.name, letters=0, stored=0, before=0)
        topics = [config.topic] if config.topic else self._origins(is_due)
        config = dataclasses.replace(config, keep_order=False)
        with Targets(config, words, queues, topics=topics) as targets:
            before = targets.stored()
            if dry_run:
                return Redriven(name=config.name, letters=due, stored=before, before=before)
            at_once = self.frame.sparkSession.sparkContext.defaultParallelism
            tasks = sending_tasks(config, queues, at_once)
            rows = copies(
                self._found.whole.filter(is_due),
                config,
                selection=words,
                found=queues,
                tasks=tasks,
                queues_of=targets.queues,
                topics=topics,
                topic=f.col("origin"),
                more={REDRIVES: (f.col("redrives") + 1).cast("string")},
            )
            stored = due
            try:
                with targets.watched(due, on_progress):
                    send(rows, config, tasks=tasks)
            except CANCELLED:
                if not is_over():
                    raise
                stored = min(due, targets.stored_at_last(rows.sparkSession))
        return Redriven(name=config.name, letters=due, stored=stored, before=before)

    def _origins(self, condition: Column) -> list[str]:
        rows = self._found.narrow.filter(condition).select("origin").distinct().collect()
        return sorted(row.origin for row in rows)


def explained(letters: DataFrame) -> DataFrame:
    """Return dead letters with ``origin``, ``cause``, ``causeText`` and ``redrives``."""
    redrives = f.coalesce(_property(REDRIVES).try_cast("int"), f.lit(0))
    return letters.withColumns(
        {
            "origin": f.coalesce(_property(names.RETRY_TOPIC), _property("DLQ_ORIGIN_TOPIC")),
            "cause": f.coalesce(_property(_CAUSE), f.lit(UNKNOWN)),
            "causeText": f.coalesce(_property(_TEXT), f.lit("")),
            "redrives": redrives,
        }
    )


def chosen(letters: DataFrame, choice: Choice) -> DataFrame:
    """Return some of the explained dead letters; time and key were chosen when they were read."""
    if choice.cause is not None:
        said = f.lower(f.concat_ws(": ", "cause", "causeText"))
        letters = letters.filter(said.contains(choice.cause.lower()))
    if choice.topic is not None:
        letters = letters.filter(f.col("origin") == choice.topic)
    return letters


def _check_known(name_servers: str, group: str) -> None:
    """Refuse a group that nobody knows: it would seem to be one that never failed.

    Raises:
        ConfigError: It is one.
    """
    with BrokerSession(
        SourceOptions(name_servers=name_servers, topic=dlq_topic(group))
    ) as broker_session:
        try:
            known = broker_session.known_groups()
        except Fault as fault:  # such as one that tells it to administrators only
            logger.debug("a broker does not tell its groups: fault=%s", fault)
            return
        except ClientError as error:  # one that is away may be the one that knows it
            logger.warning("nobody knows whether there is the group: group=%s %s", group, error)
            return
    if group not in known:
        users = [name for name in known if not is_system_group(name)]
        hint = (
            f"those that there are: {list_similar(group, users)}" if users else "there is none yet"
        )
        raise ConfigError(f"no broker knows the group {group}; {hint}")


def _causes(letters: DataFrame) -> list[Cause]:
    """Return, for each cause and origin: how many, since when, until when, and an example."""
    rows = (
        letters.groupBy("cause", "origin")
        .agg(
            f.count("*").alias("letters"),
            f.min("ms").alias("first"),
            f.max("ms").alias("last"),
            f.max_by("causeText", "ms").alias("example"),
        )
        .orderBy(f.desc("letters"), "cause", "origin")
        .collect()
    )
    return [
        Cause(row.cause, row.origin, row.letters, row["first"], row["last"], row.example)
        for row in rows
    ]


def _texts(letters: DataFrame) -> list[Text]:
    """Return the texts that most letters have, numbers aside."""
    text = f.regexp_replace("causeText", _NUMBERS, "#")
    rows = (
        letters.filter("causeText != ''")
        .groupBy("cause", text.alias("text"))
        .agg(f.count("*").alias("letters"), f.max("ms").alias("last"))
        .orderBy(f.desc("letters"), "cause", "text")
        .limit(_SHOWN)
        .collect()
    )
    return [Text(row.cause, row.text, row.letters, row["last"]) for row in rows]


def _property(name: str) -> Column:
    return f.col("properties")[name]
