from __future__ import annotations

import logging

import click
import pytest
from click.testing import CliRunner

from rocketpost.admin.command import (
    Failure,
    admin_command,
    describe_error,
    errors_from,
    find_masters,
    say,
    watch,
)
from rocketpost.admin.output import CannotPrint
from rocketpost.client.admin import AdminClient
from rocketpost.codec.codes import RequestCode
from rocketpost.codec.faults import (
    ConsumerNotOnline,
    GroupNotExist,
    NoMessage,
    NoPermission,
    RequestCodeNotSupported,
    TopicNotExist,
    UnknownFault,
)
from rocketpost.errors import (
    ConfigError,
    ConnectionLost,
    NoNameServer,
    RequestTimeout,
    RocketpostError,
    RouteNotFound,
)
from rocketpost.testing.virtual_time import in_virtual_time


@pytest.mark.parametrize(
    ("error", "texts"),
    [
        (NoNameServer("none answers"), ["none answers", "check -n", "mqnamesrv"]),
        (ConnectionLost("lost h:1"), ["lost h:1", "check the address"]),
        (RequestTimeout("no answer in 5 s"), ["in 5 s", "may or may not", "--timeout"]),
        (RouteNotFound("no topic T"), ["no topic T", "topicList"]),
        (TopicNotExist("no topic T"), ["no topic T", "topicList"]),
        (ConsumerNotOnline("offline"), ["offline", "start a consumer"]),
        (GroupNotExist("no group"), ["no group", "consumerProgress"]),
        (NoMessage("nothing there"), ["nothing there"]),
        (RequestCodeNotSupported("code 999"), ["does not support", "code 999"]),
        (NoPermission("read only"), ["refused with code 16", "read only"]),
        (UnknownFault(77, "odd"), ["refused with code 77: odd"]),
        (ConfigError("bad group"), ["bad group"]),
    ],
)
def test_every_failure_is_one_line_that_says_what_to_do(
    error: RocketpostError, texts: list[str]
) -> None:
    line = describe_error(error)
    assert "\n" not in line
    for text in texts:
        assert text in line


def test_a_remark_of_several_lines_becomes_one() -> None:
    assert describe_error(NoPermission("a\n  b\n")) == "refused with code 16: a b"


def test_notes_of_an_error_are_part_of_the_line() -> None:
    error = NoPermission("no")
    error.add_note("done by the name servers a:1")
    assert describe_error(error) == "refused with code 16: no; done by the name servers a:1"


def test_an_error_without_text_is_named() -> None:
    assert "NoPermission" in describe_error(NoPermission())


def test_the_server_that_refuses_is_named() -> None:
    with pytest.raises(Failure, match=r"h:1: refused with code 16: no"), errors_from("h:1"):
        raise NoPermission("no")


async def test_one_broker_is_taken_as_it_is() -> None:
    admin = AdminClient(name_servers="127.0.0.1:1")
    assert await find_masters(admin, "h:1", None) == ["h:1"]
    for broker, cluster in (("h:1", "C"), (None, None)):
        with pytest.raises(click.UsageError, match="exactly one"):
            await find_masters(admin, broker, cluster)


def test_warnings_of_the_client_are_notes_on_stderr() -> None:
    @admin_command("warn")
    async def warn(admin: AdminClient) -> None:
        logging.getLogger("rocketpost.client").warning("query failed: topic=%s", "T")
        logging.getLogger("rocketpost.client").info("not shown")

    before = list(logging.getLogger("rocketpost").handlers)
    result = CliRunner().invoke(warn, ["-n", "127.0.0.1:1"])
    assert result.exit_code == 0
    assert result.stderr == "note: query failed: topic=T\n"
    assert logging.getLogger("rocketpost").handlers == before


@in_virtual_time
async def test_a_watch_survives_failures_that_follow_a_result(
    capsys: pytest.CaptureFixture[str],
) -> None:
    results: list[Exception | str] = ["one", ConnectionLost("lost h:1"), Failure("no x"), "two"]

    async def work(admin: AdminClient) -> None:
        result = results.pop(0)
        if isinstance(result, Exception):
            raise result
        say(result)

    with pytest.raises(IndexError):
        await watch(work, 1.0)(AdminClient(name_servers="h:1"))
    printed = capsys.readouterr()
    assert [line for line in printed.out.splitlines() if "Every" not in line] == ["one", "two"]
    assert printed.err.splitlines() == [
        f"mqadmin: {describe_error(ConnectionLost('lost h:1'))}",
        "mqadmin: no x",
    ]


@pytest.mark.parametrize("error", [ConnectionLost("lost h:1"), Failure("no x")])
async def test_a_watch_that_fails_at_once_ends(error: Exception) -> None:
    async def work(admin: AdminClient) -> None:
        raise error

    with pytest.raises(type(error)):
        await watch(work, 1.0)(AdminClient(name_servers="h:1"))


async def test_a_watch_whose_output_is_full_ends() -> None:
    results: list[Exception | None] = [None, CannotPrint("cannot write the output: no space")]

    async def work(admin: AdminClient) -> None:
        result = results.pop(0)
        if result is not None:
            raise result

    with pytest.raises(CannotPrint):
        await watch(work, 0.0)(AdminClient(name_servers="h:1"))


@pytest.mark.parametrize(
    ("code", "is_question"),
    [
        (RequestCode.GET_TOPIC_STATS_INFO, True),
        (RequestCode.AUTH_LIST_USER, True),
        (RequestCode.UPDATE_BROKER_CONFIG, False),
        (RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN, False),
        (None, False),
    ],
)
def test_only_a_change_may_have_taken_effect(code: int | None, is_question: bool) -> None:
    error = RequestTimeout("no response")
    error.request_code = code
    line = describe_error(error)
    assert ("may or may not have taken effect" in line) is not is_question
    assert line.endswith("--timeout waits longer")
