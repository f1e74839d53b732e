"""Commands of RocketMQ's ``mqadmin`` that Rocketpost does not have, and the reasons."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple


class Absent(NamedTuple):
    """A command that is not here."""

    name: str
    reason: str


_REASONS: Final = {
    "updateStaticTopic remappingStaticTopic": (
        "queues do not move between brokers here; add queues with updateTopic -w and -r"
    ),
    "dumpCompactionLog": "there are no compacted topics here",
    "getControllerConfig updateControllerConfig": (
        "there is no controller here: the brokers of a group elect their leader, see "
        "getControllerMetaData, getBrokerConfig and updateBrokerConfig"
    ),
    "cleanBrokerMetadata": (
        "there is no controller here that could remember a broker; `rocketpost group remove` "
        "removes a member of a group"
    ),
    "addBroker removeBroker": (
        "there are no broker containers here; `mqbroker --brokers N` runs several brokers"
    ),
    "getColdDataFlowCtrInfo updateColdDataFlowCtrGroupConfig removeColdDataFlowCtrGroupConfig": (
        "reads of old messages wait in threads of their own and do not slow down others, so there "
        "is nothing to limit; coldReads in brokerStatus counts them"
    ),
    "setCommitLogReadAheadMode": "the broker decides by itself how far it reads ahead",
    "exportMetadataInRocksDB rocksDBConfigToJson": (
        "tables are JSON files below store/config here, not RocksDB; exportMetadata exports them"
    ),
    "exportPopRecord": "popped messages are records of the log here, not of RocksDB",
    "checkRocksdbCqWriteProgress": "consume queues are files here, not RocksDB",
    "switchTimerEngine": "timed messages have one engine here, the timer wheel",
    "getBrokerLiteInfo getParentTopicInfo getLiteTopicInfo getLiteClientInfo getLiteGroupInfo": (
        "there are no light topics here"
    ),
    "triggerLiteDispatch": "there are no light topics here",
    "updateAclConfig deleteAclConfig updateGlobalWhiteAddr getAclConfig clusterAclConfigVersion": (
        "access control is that of RocketMQ 5.3 and later; see createUser and createAcl"
    ),
}

ABSENT: Final[Mapping[str, Absent]] = {
    name.lower(): Absent(name, reason)
    for names, reason in _REASONS.items()
    for name in names.split()
}
"""The commands, by their names in lower case."""
