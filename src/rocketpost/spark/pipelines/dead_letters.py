"""Dead letters: a report on their causes, and the redrive of selected ones.

Letters are classified by exception, text, original topic and time. Numbers in texts are ignored, so
that "no customer 17" and "no customer 18" are one cause.
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
from rocketpost.spark.pipelines.copying import (
    CopyConfig,
    choose_task_count,
    count_origins,
    make_copies,
    send,
)
from rocketpost.spark.pipelines.dead_letter_report import Cause, LetterReport, RedriveReport, Text
from rocketpost.spark.pipelines.selection import SelectedMessages, Selection, select
from rocketpost.spark.pipelines.targets import CANCELLED, Targets
from rocketpost.spark.records.columns import all_columns, ddl
from rocketpost.spark.suggestions import list_similar

logger = logging.getLogger(__name__)

UNKNOWN: Final = "unknown"
REDRIVES: Final = "REDRIVES"
"""The property with the number of redrives."""
REDRIVES_MAX: Final = 3
_CAUSE: Final = "CONSUME_FAILURE"
_TEXT: Final = "CONSUME_FAILURE_TEXT"
_NUMBERS: Final = r"\b(0x[0-9a-fA-F]+|[0-9a-fA-F-]{16,}|[0-9][0-9.,:]*)"
_SHOWN: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A choice of dead letters; None does not restrict it.

    Attributes:
        cause: A part of the exception's class or text, in any letter case.
        topic: The original topic.
        key: One of the keys.
        start_ms: The earliest time of death.
        end_ms: The end of the times of death.
    """

    cause: str | None = None
    topic: str | None = None
    key: str | None = None
    start_ms: int | None = None
    end_ms: int | None = None


class DeadLetters:
    """The present dead letters of a group, or a choice of them; later ones are not included.

    ::

        letters = DeadLetters(spark, "127.0.0.1:9876", "billing", Choice(cause="KeyError"))
        print(letters.report().causes)
        letters.redrive(CopyConfig(name_servers="127.0.0.1:9876", name="fix-417"))

    Args:
        spark: The session.
        name_servers: ``host:port;host:port``.
        group: The consumer group.
        choice: The choice of letters; all if None.
        redrives_max: The limit of redrives of a letter.

    Raises:
        ConfigError: The group's name is illegal, or no broker knows the group.
        ClientError: Brokers do not answer.
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
            raise ConfigError("the maximum number of redrives must be at least 1")
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
        except RouteNotFound:  # the first letter creates the topic
            _check_known(name_servers, group)
            none = spark.createDataFrame([], ddl(all_columns()))
            found = SelectedMessages(none, none)
        self._found = SelectedMessages(
            *(select_letters(add_causes(frame), self.choice) for frame in found)
        )

    @property
    def frame(self) -> DataFrame:
        """The letters, with ``origin``, ``cause``, ``causeText`` and ``redrives``."""
        return self._found.whole

    def report(self) -> LetterReport:
        """Return the report on causes, topics and times."""
        letters = self._found.narrow.select(
            "origin", "cause", "causeText", "redrives", f.unix_millis("storeTimestamp").alias("ms")
        ).persist()
        try:
            causes = tuple(_count_causes(letters))
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
                texts=tuple(_count_texts(letters)),
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
    ) -> RedriveReport:
        """Send the letters to their original topics, each once for this name and choice.

        Letters without a known origin are skipped, unless the configuration names a topic, and so
        are letters at the limit of redrives. Letters since the last run of this name are sent, too.

        Raises:
            ClientError: Brokers do not answer.
            PySparkException: A task failed permanently; run again to continue.
        """
        is_due = f.col("redrives") < self.redrives_max
        if config.topic is None:
            is_due = is_due & f.col("origin").isNotNull()
        queues = count_origins(self._found.narrow.filter(is_due))
        words = json.dumps([self._selection.words, dataclasses.astuple(self.choice)])
        due = sum(origin.messages for origin in queues)
        if not queues:
            return RedriveReport(name=config.name, letters=0, stored=0, before=0)
        topics = [config.topic] if config.topic else self._origins(is_due)
        config = dataclasses.replace(config, keep_order=False)
        with Targets(config, words, queues, topics=topics) as targets:
            before = targets.count_stored()
            if dry_run:
                return RedriveReport(name=config.name, letters=due, stored=before, before=before)
            at_once = self.frame.sparkSession.sparkContext.defaultParallelism
            tasks = choose_task_count(config, queues, at_once)
            rows = make_copies(
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
                with targets.watch_progress(due, on_progress):
                    send(rows, config, tasks=tasks)
            except CANCELLED:
                if not is_over():
                    raise
                stored = min(due, targets.count_stored_at_end(rows.sparkSession))
        return RedriveReport(name=config.name, letters=due, stored=stored, before=before)

    def _origins(self, condition: Column) -> list[str]:
        rows = self._found.narrow.filter(condition).select("origin").distinct().collect()
        return sorted(row.origin for row in rows)


def add_causes(letters: DataFrame) -> DataFrame:
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


def select_letters(letters: DataFrame, choice: Choice) -> DataFrame:
    """Return the chosen dead letters; time and key were applied when they were read."""
    if choice.cause is not None:
        said = f.lower(f.concat_ws(": ", "cause", "causeText"))
        letters = letters.filter(said.contains(choice.cause.lower()))
    if choice.topic is not None:
        letters = letters.filter(f.col("origin") == choice.topic)
    return letters


def _check_known(name_servers: str, group: str) -> None:
    """Check that brokers know the group; an unknown one would seem to have no failures.

    Raises:
        ConfigError: No broker knows the group.
    """
    with BrokerSession(
        SourceOptions(name_servers=name_servers, topic=dlq_topic(group))
    ) as broker_session:
        try:
            known = broker_session.known_groups()
        except Fault as fault:  # for example a broker that restricts this to administrators
            logger.debug("a broker does not list its groups: fault=%s", fault)
            return
        except ClientError as error:  # a broker that is down may know the group
            logger.warning("cannot check whether the group exists: group=%s %s", group, error)
            return
    if group not in known:
        users = [name for name in known if not is_system_group(name)]
        hint = f"existing groups: {list_similar(group, users)}" if users else "there is none yet"
        raise ConfigError(f"no broker knows the group {group}; {hint}")


def _count_causes(letters: DataFrame) -> list[Cause]:
    """Return the number, first and last time, and an example for each cause and origin."""
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


def _count_texts(letters: DataFrame) -> list[Text]:
    """Return the most frequent texts, ignoring numbers."""
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
