from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from rocketpost.admin.absent import ABSENT
from rocketpost.admin.catalog import CATALOG
from rocketpost.admin.main import mqadmin

_NAMES = """
    updateTopic updateTopicList deleteTopic updateTopicPerm topicRoute topicStatus
    topicClusterList topicList updateOrderConf allocateMQ updateStaticTopic remappingStaticTopic
    updateSubGroup updateSubGroupList setConsumeMode deleteSubGroup consumerProgress
    consumerStatus getConsumerConfig startMonitoring cloneGroupOffset resetOffsetByTime
    skipAccumulatedMessage brokerStatus brokerConsumeStats updateBrokerConfig cleanExpiredCQ
    deleteExpiredCommitLog cleanUnusedTopic sendMsgStatus getBrokerConfig haStatus addBroker
    removeBroker resetMasterFlushOffset getColdDataFlowCtrInfo updateColdDataFlowCtrGroupConfig
    removeColdDataFlowCtrGroupConfig setCommitLogReadAheadMode switchTimerEngine getSyncStateSet
    getBrokerEpoch queryMsgById queryMsgByKey queryMsgByUniqueKey queryMsgByOffset
    queryMsgTraceById printMsg printMsgByQueue sendMessage consumeMessage checkMsgSendRT
    dumpCompactionLog producerConnection consumerConnection producer clusterList clusterRT
    statsAll updateKvConfig deleteKvConfig wipeWritePerm addWritePerm getNamesrvConfig
    updateNamesrvConfig queryCq checkRocksdbCqWriteProgress exportMetadata exportConfigs
    exportMetrics exportMetadataInRocksDB exportPopRecord rocksDBConfigToJson
    getControllerMetaData getControllerConfig updateControllerConfig electMaster
    cleanBrokerMetadata createUser updateUser deleteUser getUser listUser copyUser createAcl
    updateAcl deleteAcl getAcl listAcl copyAcl getBrokerLiteInfo getParentTopicInfo
    getLiteTopicInfo getLiteClientInfo getLiteGroupInfo triggerLiteDispatch
"""
COMMANDS_OF_ROCKETMQ = _NAMES.split()
"""The 96 commands of RocketMQ 5.5.0."""


@pytest.fixture(autouse=True)
def _no_name_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)


def run(*words: str) -> Result:
    return CliRunner().invoke(mqadmin, words)


def only_line(result: Result) -> str:
    assert result.stdout == ""
    [line] = result.stderr.splitlines()
    return line


@pytest.mark.parametrize("words", [(), ("-h",), ("help",)])
def test_without_a_command_all_commands_are_listed(words: tuple[str, ...]) -> None:
    result = run(*words)
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0] == "The most commonly used mqadmin commands are:"
    assert "   topicRoute                          Show which brokers serve a topic." in lines
    assert lines[-1].startswith("See 'mqadmin help <command>'")
    for name in mqadmin.commands:
        assert any(line.startswith(f"   {name} ") for line in lines)


def test_every_command_has_help_by_both_ways() -> None:
    for name in mqadmin.commands:
        by_option, by_word = run(name, "-h"), run("help", name)
        assert by_option.exit_code == by_word.exit_code == 0
        assert by_option.stdout.startswith(f"Usage: mqadmin {name} [OPTIONS]")
        assert by_option.stdout == by_word.stdout


def test_every_command_takes_name_servers_and_a_timeout() -> None:
    for name in set(mqadmin.commands) - {"help"}:
        shown = run(name, "-h").stdout
        assert "-n, --namesrvAddr" in shown
        assert "--timeout" in shown


def test_the_guide_counts_the_commands() -> None:
    ours = set(mqadmin.commands) - {"help"}
    known = ours & set(COMMANDS_OF_ROCKETMQ)
    guide = (Path(__file__).parents[3] / "docs/guide/mqadmin.md").read_text()
    counts = f"Rocketpost has {len(known)} of the {len(COMMANDS_OF_ROCKETMQ)} commands"
    assert counts in guide
    assert f"and {len(ours - known)} of its own" in guide


def test_names_ignore_case() -> None:
    assert run("TOPICROUTE", "-h").stdout == run("topicRoute", "-h").stdout
    assert run("help", "TopicRoute").exit_code == 0


def test_an_unknown_command_suggests_near_ones() -> None:
    result = run("topicLst")
    assert result.exit_code == 2
    assert "did you mean topicList" in only_line(result)


def test_an_unknown_command_without_near_ones_says_where_to_look() -> None:
    for result in (run("xyzzy"), run("help", "xyzzy")):
        assert result.exit_code == 2
        assert "there is no command xyzzy" in only_line(result)
        assert "lists all commands" in only_line(result)


def test_commands_of_rocketmq_that_are_absent_say_why() -> None:
    for name in ("updateAclConfig", "CLEANBROKERMETADATA"):
        result = run(name, "-b", "127.0.0.1:1")
        assert result.exit_code == 2
        assert "is not in Rocketpost: " in only_line(result)
    assert "updateAclConfig" in only_line(run("updateaclconfig"))


@pytest.mark.parametrize("name", COMMANDS_OF_ROCKETMQ)
def test_every_command_of_rocketmq_is_there_or_says_why_it_is_not(name: str) -> None:
    is_there = name in mqadmin.commands
    assert is_there != (name.lower() in ABSENT)
    if not is_there:
        assert "there is no command" not in only_line(run(name))


def test_the_catalog_has_the_texts_of_the_commands() -> None:
    for name, entry in CATALOG.items():
        assert entry.text == mqadmin.commands[name].get_short_help_str(66)


def test_every_command_of_a_module_is_in_the_catalog() -> None:
    for module in {entry.module for entry in CATALOG.values()}:
        names = [each.name for each in importlib.import_module(module).COMMANDS]
        assert names == [name for name, entry in CATALOG.items() if entry.module == module]


def test_listing_and_completing_commands_imports_none_of_them() -> None:
    """The start takes a tenth of a second; with the modules of all commands it took five."""
    code = """
import sys
from click.testing import CliRunner
from rocketpost.admin.main import mqadmin
assert "clusterList" in CliRunner().invoke(mqadmin, []).stdout
words = {"COMP_WORDS": "mqadmin topicR", "COMP_CWORD": "1"}
environment = {"_MQADMIN_COMPLETE": "bash_complete", **words}
found = CliRunner().invoke(mqadmin, [], prog_name="mqadmin", env=environment)
assert found.stdout.strip() == "plain,topicRoute", found.stdout
slow = {"asyncio", "rocketpost.client", "rocketpost.admin.command", "msgspec", "uvloop", "lz4"}
assert not slow & set(sys.modules), slow & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_command_imports_its_own_module_only() -> None:
    code = """
import sys
from rocketpost.admin.main import mqadmin
assert mqadmin.get_command(None, "topicroute").name == "topicRoute"
loaded = {name for name in sys.modules if name.startswith("rocketpost.admin.commands.")}
assert loaded <= {"rocketpost.admin.commands.topic_view"}, loaded
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_no_command_is_both_there_and_absent() -> None:
    assert not {name.lower() for name in mqadmin.commands} & ABSENT.keys()


def test_a_missing_name_server_is_one_line_and_fails_at_once() -> None:
    result = run("topicList")
    assert result.exit_code == 1
    assert only_line(result) == (
        "mqadmin: no name server is known: pass -n host:port or set NAMESRV_ADDR"
    )


def test_an_unreachable_name_server_is_one_line() -> None:
    result = run("topicList", "-n", "127.0.0.1:1")
    assert result.exit_code == 1
    assert "cannot connect to 127.0.0.1:1" in only_line(result)
    assert "check -n" in only_line(result)


def test_the_option_wins_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NAMESRV_ADDR", "127.0.0.1:2")
    assert "127.0.0.1:2" in only_line(run("topicList"))
    assert "127.0.0.1:1" in only_line(run("topicList", "-n", "127.0.0.1:1"))


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("topicRoute",), "missing option '-t'"),
        (("topicRoute", "-t", "T", "-x"), "-x"),
        (("updateTopic", "-t", "T"), "exactly one of -b HOST:PORT and -c CLUSTER"),
        (("updateTopic", "-t", "T", "-b", "h:1", "-c", "C"), "exactly one of -b"),
        (("updateTopic", "-t", "T", "-c", "C", "-r", "many"), "'many' is not a valid integer"),
        (("updateTopic", "-t", "T", "-c", "C", "-a", "x=1"), "neither +name=value nor -name"),
        (("updateSubGroup", "-g", "G", "-c", "C", "-p", "[]"), "not a JSON object"),
        (("brokerStatus",), "exactly one of -b"),
        (("getBrokerConfig", "-b", "h:1", "-c", "C"), "exactly one of -b"),
        (("updateOrderConf", "-t", "T", "-m", "put"), "put needs -v"),
        (("updateOrderConf", "-t", "T", "-m", "turn"), "'turn' is not one of"),
        (("allocateMQ", "-t", "T", "-i", ","), "-i lists no consumer"),
        (("topicStatus", "-t", "T", "-c", "C"), "not in this version"),
        (("consumerProgress", "-t", "T"), "-t, -s and -e need -g"),
        (("resetOffsetByTime", "-g", "G", "-t", "T", "-s", "soon"), "'soon' is not a time"),
        (
            ("resetOffsetByTime", "-g", "G", "-t", "T", "-s", "0", "-q", "1"),
            "must be given together",
        ),
        (("sendMessage", "-t", "T", "-p", "x", "-i", "1"), "Broker name must be set"),
        (("consumeMessage", "-t", "T", "-b", "broker-a"), "-b and -i must be given together"),
        (("printMsg", "-t", "T", "-b", "soon"), "is not a time"),
        (("printMsg", "-t", "T", "-c", "klingon"), "unknown encoding"),
        (("printMsgByQueue", "-t", "T", "-a", "b", "-i", "0"), "say what to do"),
        (("queryMsgByOffset", "-t", "T", "-b", "b", "-i", "0", "-o", "-1"), "-1"),
        (("queryMsgById", "-t", "T", "-i", "X", "-f", "klingon"), "unknown encoding"),
    ],
)
def test_a_wrong_command_line_is_one_line_with_status_2(words: tuple[str, ...], text: str) -> None:
    result = run(*words, "-n", "127.0.0.1:1")
    assert result.exit_code == 2
    assert text in only_line(result)
    assert f"see `mqadmin help {words[0]}`" in only_line(result)


def test_a_file_that_is_missing_or_no_json_is_one_line(tmp_path: object) -> None:
    path = f"{tmp_path}/topics.json"
    common = ("updateTopicList", "-n", "127.0.0.1:1", "-b", "127.0.0.1:2", "-f", path)
    assert "cannot read" in only_line(run(*common))
    for text, problem in [
        ("{", "is not valid JSON for this command"),
        ("[]", "lists no topic"),
        ('[{"perm":6}]', "without topicName"),
    ]:
        with open(path, "w") as file:
            file.write(text)
        result = run(*common)
        assert result.exit_code == 1
        assert problem in only_line(result)


def test_version() -> None:
    assert "Rocketpost" in run("-V").stdout
