"""The action that replays messages: it copies them to a topic, as a job."""

from __future__ import annotations

import time
from typing import Final

from rocketpost.client.consumer.offset_calls import OffsetCalls
from rocketpost.console.actions.action import Action, Field, describe_readers, require
from rocketpost.console.actions.plan import Plan, Step
from rocketpost.console.clusters import Cluster
from rocketpost.console.jobs.copying import KIND, make_filter
from rocketpost.console.jobs.record import JobRecord
from rocketpost.console.jobs.runner import BusyError, new_job_id
from rocketpost.console.lookup import find_topic
from rocketpost.console.shapes import parse_moment
from rocketpost.console.views.scan import find_queues
from rocketpost.console.visit import BadInputError, Visit
from rocketpost.diagnosis.concurrency import map_concurrently
from rocketpost.errors import FilterError
from rocketpost.model.route import MessageQueue

_RATE_MAX: Final = 10_000
_TYPED: Final = 100


async def plan_replay(visit: Visit) -> Plan:
    """Plan to copy the messages of a topic between two times.

    Raises:
        BadInputError: There are no such messages, or a field is wrong.
    """
    topic, target = require(visit, "topic"), require(visit, "target")
    snapshot = await visit.cluster.collector.fresh_snapshot()
    find_topic(snapshot, topic)
    other = _target_cluster(visit)
    if other is visit.cluster and target == topic:
        raise BadInputError(visit.text("action.same_topic"))
    goal = find_topic(await other.collector.fresh_snapshot(), target)
    begin_ms, end_ms = _moment(visit, "begin", "-1h"), _moment(visit, "end", "now")
    # Times mean those of the first preview, so that the second one is the same.
    visit.form = {**visit.form, "begin": str(begin_ms), "end": str(end_ms)}
    try:
        make_filter({"tags": visit.query("tags"), "sql": visit.query("sql")})
    except FilterError as error:
        raise BadInputError(str(error)) from None
    places = await _find_places(visit, topic, begin_ms, end_ms)
    total = sum(end - begin for _, begin, end in places)
    if not total:
        raise BadInputError(visit.text("action.no_messages"))
    visit.number("rate", 100, 1, _RATE_MAX)
    return Plan(
        action="replay",
        title=visit.text("action.replay"),
        steps=[
            Step(
                target=f"{queue.broker_name} {queue.queue_id}",
                before=f"{begin} … {end}",
                after=visit.text("action.messages", count=end - begin),
            )
            for queue, begin, end in places
        ],
        total=total,
        risks=[describe_readers(visit, goal.groups)],
        is_reversible=False,
        typed=target if total > _TYPED else "",
    )


async def start_replay(visit: Visit, plan: Plan) -> JobRecord:
    """Start the job of a plan.

    Raises:
        BadInputError: One runs for the same topic.
    """
    assert visit.session is not None
    topic, other = require(visit, "topic"), _target_cluster(visit)
    places = []
    for step in plan.steps:
        broker, _, queue_id = step.target.rpartition(" ")
        begin, _, end = step.before.partition(" … ")
        places.append(f"{broker}:{queue_id}:{begin}:{end}")
    names = ("topic", "target", "tags", "sql", "rate", "begin", "end")
    record = JobRecord(
        id=new_job_id(),
        kind=KIND,
        what=topic,
        cluster=visit.cluster.name,
        user=visit.session.user.name,
        command="",
        fields={
            **{name: visit.query(name) for name in names},
            "places": ",".join(places),
            "target_cluster": other.name,
        },
        total=plan.total,
        begun_ms=time.time_ns() // 1_000_000,
    )
    try:
        return await visit.services.jobs.start(
            record, visit.admin, other.client_of(visit.session)
        )  # fmt: skip
    except BusyError as error:
        raise BadInputError(visit.text("jobs.busy", id=error)) from None


async def _find_places(
    visit: Visit, topic: str, begin_ms: int, end_ms: int
) -> list[tuple[MessageQueue, int, int]]:
    calls = OffsetCalls(visit.admin.session, asks_slaves=True)

    async def find(queue: MessageQueue) -> tuple[MessageQueue, int, int]:
        begin = max(await calls.min_offset(queue), await calls.search_offset(queue, begin_ms))
        end = min(await calls.max_offset(queue), await calls.search_offset(queue, end_ms + 1))
        return queue, begin, end

    found = await map_concurrently(await find_queues(visit.admin, topic), find)
    return [each for each in found if each[1] < each[2]]


def _target_cluster(visit: Visit) -> Cluster:
    name = visit.query("target_cluster")
    if not name:
        return visit.cluster
    for cluster in visit.services.clusters:
        if cluster.name == name:
            return cluster
    raise BadInputError(visit.text("action.no_cluster", name=name))


def _moment(visit: Visit, name: str, default: str) -> int:
    try:
        return parse_moment(visit.query(name) or default, now_ms=time.time_ns() // 1_000_000)
    except (ValueError, OverflowError):
        raise BadInputError(visit.text("error.time", field=name)) from None


ACTIONS: Final = (
    Action(
        "replay",
        (
            Field("topic"),
            Field("begin", "-1h"),
            Field("end", "now"),
            Field("tags", is_required=False, label="tags_filter"),
            Field("sql", is_required=False),
            Field("target"),
            Field("target_cluster", is_required=False),
            Field("rate", "100", is_number=True),
        ),
        plan_replay,
        start=start_replay,
    ),
)
