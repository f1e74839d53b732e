"""The action that copies messages: the offsets of a time span, and the fields of its job."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from starlette.requests import Request

from rocketpost.codec.codes import RequestCode
from rocketpost.codec.headers.offset import OffsetResponse, QueueRequest, SearchOffset
from rocketpost.console.access.sessions import Session
from rocketpost.console.access.users import Role, User
from rocketpost.console.actions.replay import ACTIONS, plan_replay, start_replay
from rocketpost.console.catalogue import load_catalogue
from rocketpost.console.collect.snapshot import BrokerView, Snapshot, TopicView
from rocketpost.console.config import ConsoleConfig
from rocketpost.console.jobs.copying import KIND, parse_places
from rocketpost.console.jobs.runner import Job, Jobs
from rocketpost.console.visit import BadInputError, NotFoundError, Services, Visit
from rocketpost.errors import NoPermission, RocketpostError
from rocketpost.model.route import QueueData, TopicRoute
from rocketpost.testing.waiting import until

CATALOGUE = load_catalogue()
NOW_MS = 2_000_000_000_000
[ACTION] = ACTIONS
SESSION = Session(
    id="s", user=User(name="ada", role="operator"), csrf="c", address="10.0.0.9", agent="test",
    began=0.0, seen=0.0,
)  # fmt: skip


class FakeQueue:
    """A queue: the offset of its oldest message, and the times of its messages."""

    def __init__(self, first: int, *stored_ms: int) -> None:
        self.first = first
        self.stored_ms = stored_ms

    def answer(self, code: int, header: QueueRequest | SearchOffset) -> int:
        match code:
            case RequestCode.GET_MIN_OFFSET:
                return self.first
            case RequestCode.GET_MAX_OFFSET:
                return self.first + len(self.stored_ms)
        assert isinstance(header, SearchOffset)
        return self.first + bisect_left(self.stored_ms, header.timestamp)


class FakeCluster:
    """A cluster, its client and its collector; the topic Orders has the given queues."""

    def __init__(self, name: str, *queues: FakeQueue, broker: str = "broker-a") -> None:
        self.name = name
        self.queues = queues
        self.broker = broker
        self.snapshot = Snapshot(
            at_ms=1,
            topics={
                "Orders": TopicView(name="Orders", kind="normal"),
                "Copies": TopicView(name="Copies", kind="normal", groups=["shipping", "billing"]),
                "Quiet": TopicView(name="Quiet", kind="normal"),
            },
        )
        self.login_problem: RocketpostError | None = None
        self.collector = self.cluster = self.session = self.routes = self
        self.client_id = f"client of {name}"

    async def fresh_snapshot(self) -> Snapshot:
        return self.snapshot

    def client_of(self, session: Session | None) -> FakeCluster:
        assert session is SESSION
        if self.login_problem is not None:
            raise self.login_problem
        return self

    async def route(self, topic: str) -> TopicRoute:
        assert topic == "Orders"
        queues = QueueData(broker_name=self.broker, read_queue_nums=len(self.queues))
        return TopicRoute(queue_datas=[queues])

    def master_or_first(self, broker_name: str) -> str:
        assert broker_name == self.broker
        return "a:1"

    async def call(self, address: str, code: int, header: QueueRequest | SearchOffset) -> Any:
        assert (address, header.topic) == ("a:1", "Orders")
        offset = self.queues[header.queue_id].answer(code, header)
        return SimpleNamespace(read=lambda kind: OffsetResponse(offset=offset))


class Console:
    """A console of two clusters, whose jobs do not end by themselves."""

    def __init__(self, state: Path) -> None:
        first = FakeQueue(100, *range(1000, 2000, 100)), FakeQueue(0, 1500), FakeQueue(7)
        self.home = FakeCluster("n:1", *first)
        self.other = FakeCluster("n:2")
        self.jobs = Jobs(state, {KIND: self.work})
        self.started: list[Job] = []
        unused = cast(Any, SimpleNamespace())
        self.services = Services(
            config=ConsoleConfig(clusters=("n:1", "n:2")),
            catalogue=CATALOGUE,
            reasons=unused,
            accounts=unused,
            clusters=cast(Any, [self.home, self.other]),
            audit=unused,
            plans=unused,
            jobs=self.jobs,
        )

    async def work(self, job: Job) -> None:
        self.started.append(job)
        await asyncio.get_running_loop().create_future()

    def visit(self, **form: str) -> Visit:
        """Return the visit of a preview; by default of all messages of Orders, to Copies."""
        scope = {"type": "http", "path": "/actions/replay", "query_string": b"", "headers": []}
        given = {"topic": "Orders", "target": "Copies", "begin": "0", **form}
        return Visit(Request(scope), self.services, "en", SESSION, given)


@pytest.fixture
async def console(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Console]:
    clock = SimpleNamespace(time_ns=lambda: NOW_MS * 1_000_000)
    monkeypatch.setattr("rocketpost.console.actions.replay.time", clock)
    console = Console(tmp_path / "jobs")
    async with console.jobs:
        yield console


def test_it_is_an_action_of_operators_that_starts_a_job() -> None:
    assert (ACTION.name, ACTION.role, ACTION.work) == ("replay", Role.OPERATOR, None)
    assert [each.name for each in ACTION.fields if each.is_required] == [
        "topic", "begin", "end", "target", "rate"
    ]  # fmt: skip


async def test_a_plan_shows_the_offsets_of_each_queue_with_messages(console: Console) -> None:
    plan = await plan_replay(console.visit())
    assert [(step.target, step.before, step.after) for step in plan.steps] == [
        ("broker-a 0", "100 … 110", "10 messages"),
        ("broker-a 1", "0 … 1", "1 messages"),
    ]
    assert (plan.total, plan.is_reversible, plan.typed) == (11, False, "")
    assert plan.risks[0].endswith("billing, shipping")


@pytest.mark.parametrize(
    ("begin", "end", "offsets"),
    [
        ("1200", "1400", "102 … 105"),  # both bounds are part of the span
        ("1201", "1399", "103 … 104"),
        ("1900", "now", "109 … 110"),
        ("1970-01-01 00:00:01", "1000", "100 … 101"),
    ],
)
async def test_times_bound_the_messages(
    console: Console, begin: str, end: str, offsets: str
) -> None:
    plan = await plan_replay(console.visit(begin=begin, end=end))
    assert plan.steps[0].before == offsets


async def test_the_times_of_a_preview_are_those_of_its_form(console: Console) -> None:
    console.home.queues[0].stored_ms = (NOW_MS - 90_000, NOW_MS - 30_000, NOW_MS)
    visit = console.visit(begin="-60s", end="now")
    first = await plan_replay(visit)
    begin, end = int(visit.query("begin")), int(visit.query("end"))
    assert (end - begin, first.steps[0].before) == (60_000, "101 … 103")
    again = console.visit(begin=str(begin), end=str(end))
    assert (await plan_replay(again)).digest == first.digest
    assert (again.query("begin"), again.query("end")) == (str(begin), str(end))


@pytest.mark.parametrize("begin", ["-99999d", "1969-07-20 20:17"])
async def test_a_preview_from_before_all_messages_can_be_applied(
    console: Console, begin: str
) -> None:
    visit = console.visit(begin=begin)
    plan = await plan_replay(visit)
    assert plan.total == 11
    again = console.visit(begin=visit.query("begin"), end=visit.query("end"))
    assert (await plan_replay(again)).digest == plan.digest


async def test_a_message_that_is_stored_later_changes_the_plan(console: Console) -> None:
    first = await plan_replay(console.visit())
    console.home.queues[1].stored_ms = (1500, 1600)
    assert (await plan_replay(console.visit())).digest != first.digest


@pytest.mark.parametrize(
    "form",
    [
        {},  # the last hour
        {"begin": "5000", "end": "9000"},
        {"begin": "1500", "end": "1200"},
    ],
)
async def test_a_span_without_messages_is_refused(console: Console, form: dict[str, str]) -> None:
    with pytest.raises(BadInputError, match="No message was stored in this time"):
        await plan_replay(console.visit(**{"begin": "", **form}))


async def test_a_copy_of_many_messages_asks_for_the_name_of_the_target(console: Console) -> None:
    console.home.queues[1].stored_ms = (1500,) * 90
    assert (await plan_replay(console.visit())).typed == ""
    console.home.queues[1].stored_ms = (1500,) * 91
    assert (await plan_replay(console.visit())).typed == "Copies"


async def test_the_risk_is_about_the_groups_of_the_target(console: Console) -> None:
    plan = await plan_replay(console.visit(target="Quiet"))
    assert plan.risks == ["No group reads the topic now."]
    console.other.snapshot.topics["Orders"].groups = ["audit"]
    plan = await plan_replay(console.visit(target="Orders", target_cluster="n:2"))
    assert plan.risks[0].endswith(": audit")


@pytest.mark.parametrize("target_cluster", ["", "n:1"])
async def test_a_topic_is_not_copied_to_itself(console: Console, target_cluster: str) -> None:
    with pytest.raises(BadInputError, match="reset the offsets of the group"):
        await plan_replay(console.visit(target="Orders", target_cluster=target_cluster))


@pytest.mark.parametrize(
    ("form", "problem"),
    [
        ({"topic": " "}, "Topic is needed"),
        ({"target": ""}, "is needed"),
        ({"target_cluster": "n:3"}, "does not know the cluster n:3"),
        ({"begin": "yesterday"}, "begin"),
        ({"end": "9999999-01-01"}, "end"),
        ({"sql": "a >"}, "at character 4"),
        ({"rate": "0"}, "rate"),
        ({"rate": "10001"}, "rate"),
        ({"rate": "fast"}, "rate"),
    ],
)
async def test_wrong_fields_are_refused(
    console: Console, form: dict[str, str], problem: str
) -> None:
    with pytest.raises(BadInputError, match=problem):
        await plan_replay(console.visit(**form))


@pytest.mark.parametrize("form", [{"topic": "Lost"}, {"target": "Lost"}])
async def test_a_topic_that_no_broker_has_is_missing(
    console: Console, form: dict[str, str]
) -> None:
    with pytest.raises(NotFoundError, match="Lost"):
        await plan_replay(console.visit(**form))
    silent = BrokerView(cluster="c", name="b", broker_id=0, address="b:1", problem="no answer")
    console.home.snapshot.brokers.append(silent)
    with pytest.raises(RocketpostError, match="these do not answer: b"):
        await plan_replay(console.visit(**form))


# The job.


async def test_the_job_has_all_that_a_resumed_run_needs(console: Console) -> None:
    console.home.broker = "broker a:1"
    form = {"tags": "red || blue", "sql": "a > 1", "rate": "5", "target_cluster": "n:2"}
    visit = console.visit(end="1400", **form)
    plan = await plan_replay(visit)
    record = await start_replay(visit, plan)
    assert console.jobs.find(record.id) is record
    assert (record.kind, record.what, record.cluster, record.user) == (KIND, "Orders", "n:1", "ada")
    assert record.total == plan.total == 5
    assert parse_places(record.fields.pop("places")) == [("broker a:1", 0, 100, 105)]
    assert record.fields == {
        **form, "topic": "Orders", "target": "Copies", "begin": "0", "end": "1400",
    }  # fmt: skip
    assert record.begun_ms == NOW_MS
    await until(lambda: console.started)
    [job] = console.started
    clients: tuple[Any, Any] = (job.client, job.other)
    assert clients == (console.home, console.other)


async def test_without_another_cluster_the_copies_stay_in_this_one(console: Console) -> None:
    visit = console.visit()
    record = await start_replay(visit, await plan_replay(visit))
    assert record.fields["target_cluster"] == "n:1"
    assert len(parse_places(record.fields["places"])) == 2


async def test_one_job_copies_a_topic_at_a_time(console: Console) -> None:
    visit = console.visit()
    plan = await plan_replay(visit)
    record = await start_replay(visit, plan)
    with pytest.raises(BadInputError, match=f"Job {record.id} works on the same"):
        await start_replay(console.visit(target="Quiet"), plan)
    assert console.jobs.list() == [record]


async def test_a_user_without_a_login_at_the_other_cluster_starts_nothing(
    console: Console,
) -> None:
    console.other.login_problem = NoPermission("your login is not one of this cluster")
    visit = console.visit(target_cluster="n:2")
    plan = await plan_replay(visit)
    with pytest.raises(NoPermission, match="not one of this cluster"):
        await start_replay(visit, plan)
    assert console.jobs.list() == []
