"""The commands of ``mqadmin``: their modules and what the list of commands says about them.

A module is imported when one of its commands is used. Importing all of them takes longer than most
commands do.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, MutableMapping
from typing import Final, NamedTuple

import click

_COMMANDS: Final = """
commands.topic
    updateTopic              Create a topic, or change only the given values of one.
    updateTopicList          Create or change the topics in a JSON file; values that it...
    updateTopicPerm          Change only the permission of a topic.
    deleteTopic              Delete a topic on the masters of a cluster and on every name...
    updateOrderConf          Read or change the queues of an ordered topic in the name...
commands.topic_view
    topicList                List all topics.
    topicRoute               Show which brokers serve a topic.
    topicStatus              Show the offsets of every queue of a topic.
    topicConfig              Show the configuration of a topic on every master, with its...
    topicClusterList         List the clusters that serve a topic.
    allocateMQ               Show how the average strategy would assign a topic's queues.
commands.group
    updateSubGroup           Create a consumer group, or change only the given values of one.
    updateSubGroupList       Create or change the groups in a JSON file; values that it...
    deleteSubGroup           Delete a consumer group; with -c its retry and dead-letter...
    getConsumerConfig        Show the configuration of a group on every broker.
    setConsumeMode           Set whether a group pulls or pops a topic, for clients whose...
commands.consumer
    consumerProgress         Show the progress of groups.
    consumerConnection       Show the connected consumers of a group and what they subscribe...
    producerConnection       Show the connected producers of a group.
    producer                 Show every producer that is connected to a broker.
commands.consumer_status
    consumerStatus           Ask the consumers of a group how they are; files of it go to...
commands.monitoring
    startMonitoring          Watch how far groups are behind; exit status 3 if the last...
commands.offset
    resetOffsetByTime        Let a group continue at the messages of a given time.
    skipAccumulatedMessage   Let a group skip all messages that it has not consumed yet.
    cloneGroupOffset         Copy the offsets of a group in a topic to another group.
commands.stats
    statsAll                 Show traffic and backlog of topics and groups.
    brokerConsumeStats       Show the progress of every group of a broker.
commands.message
    queryMsgById             Show messages by their ids, of either kind.
    queryMsgByKey            List the messages with a key.
    queryMsgByUniqueKey      Show the message with an id that its producer created.
    queryMsgByOffset         Show the message at an offset of a queue.
commands.reading
    printMsg                 Print all messages of a topic, queue by queue.
    printMsgByQueue          Print the messages of a queue, or count them by tag.
    consumeMessage           Pull messages and print them; the group's offsets do not change.
    queryCq                  Show entries of a consume queue.
commands.sending
    sendMessage              Send one message.
    sendMsgStatus            Send messages to a broker's own topic and show how long each...
    checkMsgSendRT           Send messages to a topic's queues in turn and show how long...
    clusterRT                Send messages to every broker and show how long they take.
commands.explain
    explain                  Tell where a message is and what became of it in every group.
commands.filter
    updateFilter             Store a filter that consumers use as MATCHES('name').
    deleteFilter             Delete a named filter; refused while a group uses it.
    filterList               List the filters that brokers store.
    testFilter               Show the result of a filter for a message: TRUE, FALSE, UNKNOWN...
commands.trace
    queryMsgTraceById        Show the history of a message from the traces of its clients.
commands.dead_letter
    dlqList                  List the dead letters of a group.
    dlqShow                  Show dead letters with their bodies.
    dlqExport                Write dead letters as lines of JSON, bodies in base64.
    dlqResend                Send dead letters to their topics again, each at most once.
commands.transaction
    transactions             List pending or discarded transactions.
    resumeCheckHalfMessage   Check a discarded transaction again.
commands.cluster
    clusterList              List clusters and brokers with their load.
commands.broker
    brokerStatus             Show the runtime values of brokers.
    getBrokerConfig          Show the settings of brokers.
    updateBrokerConfig       Change a setting of brokers while they run.
export_commands
    exportMetadata           Write the topics and groups of brokers to a file.
    exportConfigs            Write the main settings of the brokers of a cluster to a file.
    exportMetrics            Write the load of the brokers of a cluster to a file.
commands.replication
    haStatus                 Show the slaves of masters, or how a slave follows its master.
    resetMasterFlushOffset   Set the master's flushed position that a slave keeps.
    getBrokerEpoch           Show the epochs of brokers under a controller, or the terms of...
    getControllerMetaData    Show which controller, or which broker of a group, leads.
    getSyncStateSet          Show which brokers of a name have the master's log, and which...
    electMaster              Let a broker lead; in a group, a member's id is its number and...
commands.cleaning
    cleanExpiredCQ           Delete consume-queue files whose messages are deleted; on all...
    cleanUnusedTopic         Delete queues of topics that no longer exist; on all masters...
    deleteExpiredCommitLog   Delete expired commit-log files now; on all masters without -b...
commands.producers
    producerState            Show the state of idempotent producers.
commands.namesrv
    wipeWritePerm            Remove the write permission of a broker in the routes of every...
    addWritePerm             Restore the write permission of a broker in the routes of every...
    updateKvConfig           Set a key-value setting on every name server.
    deleteKvConfig           Delete a key-value setting on every name server.
    getNamesrvConfig         Show the settings of every name server.
    updateNamesrvConfig      Change a setting of every name server while it runs.
commands.access.users
    createUser               Create a user.
    updateUser               Change the password, the type or the status of a user.
    deleteUser               Delete a user and its rules.
    getUser                  Show a user.
    listUser                 List users.
    copyUser                 Copy users to another server, with their passwords.
    createAcl                Add rules to those of a user.
    updateAcl                Replace the rules of a user for some resources.
    deleteAcl                Delete rules of a user.
    getAcl                   Show the rules of a user.
    listAcl                  List rules.
    copyAcl                  Copy rules to another server, on which the users exist.
commands.access.verdict
    access                   Say whether a user may do something, and which rule decides.
commands.access.audit
    auditLog                 Show the newest lines of the audit log, to super users.
"""


class Entry(NamedTuple):
    """A command, before it is imported."""

    module: str
    text: str
    """Its line in the list of commands."""


def _read(text: str) -> Iterator[tuple[str, Entry]]:
    module = ""
    for line in text.strip().splitlines():
        if not line.startswith(" "):
            module = f"rocketpost.admin.{line}"
        else:
            name, _, about = line.strip().partition(" ")
            yield name, Entry(module, about.strip())


CATALOG: Final = dict(_read(_COMMANDS))
"""All commands by name, in the order of the list."""


class LazyCommands(MutableMapping[str, click.Command]):
    """Commands by name, imported when they are asked for."""

    def __init__(self) -> None:
        self._loaded: dict[str, click.Command] = {}

    def __getitem__(self, name: str) -> click.Command:
        if name not in self._loaded:
            module = importlib.import_module(CATALOG[name].module)
            self._loaded |= {each.name: each for each in module.COMMANDS}
        return self._loaded[name]

    def __setitem__(self, name: str, command: click.Command) -> None:
        self._loaded[name] = command

    def __delitem__(self, name: str) -> None:
        raise TypeError("commands are never removed")

    def __iter__(self) -> Iterator[str]:
        yield from CATALOG
        yield from (name for name in self._loaded if name not in CATALOG)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def text(self, name: str) -> str:
        """Return the line of a command in the list, without importing the command."""
        if name in CATALOG:
            return CATALOG[name].text
        return self._loaded[name].get_short_help_str(66)
