"""Keys of RocketMQ's property files that have no effect here or stop the start, by family.

Every key that Apache RocketMQ 5.3.3 and 4.9.8 read is in a settings class or in one of these
tables, so that an existing ``broker.conf`` or ``namesrv.conf`` works and a mistyped key is found.
A key is ignored, with a note, if the broker keeps all its promises without it. It is refused if
its author would rely on something that is silently missing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from rocketpost.errors import ConfigError


class Refusal(NamedTuple):
    """Values of a key that stop the start, and the reason."""

    applies: Callable[[str], bool]
    reason: str


def refuse(values: Mapping[str, str], refusals: Mapping[str, Refusal]) -> None:
    """Refuse values that cannot be honoured.

    Raises:
        ConfigError: A value is refused; the text names key, value and reason.
    """
    for key, refusal in refusals.items():
        value = values.get(key, "").strip()
        if value and refusal.applies(value):
            raise ConfigError(f"{key}={value} cannot be honoured: {refusal.reason}")


def _is_on(value: str) -> bool:
    return value.lower() == "true"


def _is_other_than(*usual: str) -> Callable[[str], bool]:
    expected = {value.lower() for value in usual}
    return lambda value: value.lower() not in expected


def _family(reason: str, keys: str) -> dict[str, str]:
    return dict.fromkeys(keys.split(), reason)


RENAMED: Final[dict[str, str]] = {
    "mapedFileSizeCommitLog": "mappedFileSizeCommitLog",
    "mapedFileSizeConsumeQueue": "mappedFileSizeConsumeQueue",
    "haSlaveFallbehindMax": "haMaxGapNotInSync",
}
"""Old spellings in existing files, and the current keys."""

_POOLS: Final = _family(
    "there are no thread pools here: one event loop serves all requests",
    """
    sendMessageThreadPoolNums putMessageFutureThreadPoolNums pullMessageThreadPoolNums
    litePullMessageThreadPoolNums ackMessageThreadPoolNums processReplyMessageThreadPoolNums
    queryMessageThreadPoolNums adminBrokerThreadPoolNums clientManageThreadPoolNums
    consumerManageThreadPoolNums heartbeatThreadPoolNums endTransactionThreadPoolNums
    loadBalanceProcessorThreadPoolNums recoverThreadPoolNums sendThreadPoolQueueCapacity
    putThreadPoolQueueCapacity litePullThreadPoolQueueCapacity ackThreadPoolQueueCapacity
    replyThreadPoolQueueCapacity queryThreadPoolQueueCapacity clientManagerThreadPoolQueueCapacity
    consumerManagerThreadPoolQueueCapacity heartbeatThreadPoolQueueCapacity
    endTransactionPoolQueueCapacity adminBrokerThreadPoolQueueCapacity
    loadBalanceThreadPoolQueueCapacity brokerFastFailureEnable waitTimeMillsInSendQueue
    waitTimeMillsInPullQueue waitTimeMillsInLitePullQueue waitTimeMillsInHeartbeatQueue
    waitTimeMillsInTransactionQueue waitTimeMillsInAckQueue waitTimeMillsInAdminBrokerQueue
    useReentrantLockWhenPutMessage topicQueueLockNum osPageCacheBusyTimeOutMills
    maxAsyncPutMessageRequests asyncSendEnable recoverConcurrently putMessageTimeout
    enableBuildConsumeQueueConcurrently batchDispatchRequestThreadPoolNums
    spinLockCollisionRetreatOptimalDegree useABSLock dispatchCqThreads dispatchCqCacheNum
    dispatchFromSenderThread enableAsyncReput enableFastChannelEventProcess highSpeedMode
    """,
)

_REPLICATION: Final = {
    **_family(
        "controller mode is not in this version",
        """
        haMaxTimeSlaveNotCatchup controllerAddr fetchControllerAddrByDnsLookup
        syncBrokerMetadataPeriod checkSyncStateSetPeriod syncControllerMetadataPeriod
        controllerHeartBeatTimeoutMills brokerElectionPriority storePathEpochFile
        storePathBrokerIdentity asyncLearner
        """,
    ),
    **_family(
        "the members of a group replicate the commit log itself, in batches",
        "storePathDLedgerCommitLog enableBatchPush",
    ),
    **_family(
        "no version of RocketMQ reads it now",
        "maxChecksumRange maxSlaveResendLength cleanOfflineBrokerInterval",
    ),
    "forwardTimeout": "requests are not forwarded to other brokers here",
}

_MEMORY: Final = _family(
    "memory is managed by the page cache, not by the broker",
    """
    warmMapedFileEnable flushLeastPagesWhenWarmMapedFile writeWithoutMmap mappedFileSwapEnable
    putConsumeQueueDataByFileChannel transferMsgByHeap coldDataScanEnable
    coldDataFlowControlEnable dataReadAheadEnable accessMessageInMemoryHotRatio
    coldCtrStrategyEnable usePIDColdCtrStrategy cgColdReadThreshold globalColdReadThreshold
    timerColdDataCheckIntervalMs sampleCountThreshold sampleSteps commitLogForceSwapMapInterval
    commitLogSwapMapInterval commitLogSwapMapReserveFileNum logicQueueForceSwapMapInterval
    logicQueueSwapMapInterval logicQueueSwapMapReserveFileNum cleanSwapedMapInterval
    """,
)

_OFF_HEAP: Final = _family(
    "there is no pool of buffers in the process: a message is in the page cache before it is "
    "acknowledged, so it outlives a crash of the broker, which a pool does not promise",
    """
    transientStorePoolEnable transientStorePoolSize fastFailIfNoBufferInStorePool
    commitIntervalCommitLog commitCommitLogLeastPages commitCommitLogThoroughInterval
    wakeCommitWhenPutMessage
    """,
)

_NETTY: Final = _family(
    "the network layer is not Netty",
    """
    serverWorkerThreads serverCallbackExecutorThreads serverSelectorThreads
    serverOnewaySemaphoreValue serverAsyncSemaphoreValue
    serverSocketSndBufSize serverSocketRcvBufSize serverSocketBacklog
    serverPooledByteBufAllocatorEnable serverNettyWorkerGroupEnable enableShutdownGracefully
    shutdownWaitTimeSeconds writeBufferHighWaterMark writeBufferLowWaterMark
    useEpollNativeSelector clientWorkerThreads clientCallbackExecutorThreads
    clientOnewaySemaphoreValue clientAsyncSemaphoreValue connectTimeoutMillis
    channelNotActiveInterval isScanAvailableNameSrv clientChannelMaxIdleTimeSeconds
    clientSocketSndBufSize clientSocketRcvBufSize clientPooledByteBufAllocatorEnable
    clientCloseSocketIfTimeout disableCallbackExecutor disableNettyWorkerGroup
    maxReconnectIntervalTimeSeconds enableReconnectForGoAway enableNetWorkFlowControl
    """,
)

FIXED_PATHS: Final[dict[str, str]] = {
    "storePathConsumeQueue": "consumequeue",
    "storePathIndex": "index",
    "storeCheckpoint": "checkpoint",
    "abortFile": "abort",
}
"""Path keys of old documents and samples, and their fixed places under the root."""

_PATHS: Final = _family(
    "the file is named on the command line, and there is no installation folder",
    "rocketmqHome brokerConfigPath configStorePath",
)

_STORE: Final = {
    **_family(
        "the store syncs and recovers in its own way; flushIntervalCommitLog and flushDiskType act",
        """
        flushCommitLogTimed flushCommitLogLeastPages flushConsumeQueueLeastPages
        flushCommitLogThoroughInterval wakeFlushWhenPutMessage maxRecoveryCommitlogFiles
        messageIndexSafe recheckReputOffsetFromCq putMsgIndexHightWater debugLockEnable
        readUnCommitted diskFallRecorded
        """,
    ),
    **_family(
        "cleaning has no such limits; cleanResourceInterval and deleteFileBatchMax act",
        """
        deleteCommitLogFilesInterval deleteConsumeQueueFilesInterval
        destroyMapedFileIntervalForcibly redeleteHangedFileInterval maxBatchDeleteFilesNum
        correctLogicMinOffsetSleepInterval correctLogicMinOffsetForceInterval
        replicasPerDiskPartition logicalDiskSpaceCleanForciblyThreshold enableCleanExpiredOffset
        """,
    ),
    **_family(
        "the limits of names and of scans are fixed",
        "maxTopicLength travelCqFileNumWhenGetMessage maxConsumeQueueScan",
    ),
    **_family(
        "there is no RocksDB here",
        """
        cleanRocksDBDirtyCQIntervalMin statRocksDBCQIntervalSec memTableFlushIntervalMs
        realTimePersistRocksDBConfig enableRocksDBLog rocksdbCompressionType
        bottomMostCompressionTypeForConsumeQueueStore rocksdbFlushWalFrequency
        rocksdbWalFileRollingThreshold configManagerVersion
        """,
    ),
}

_ABSENT: Final = {
    **_family(
        "one task delivers timed messages, in order, and tries again until they are stored",
        """
        timerGetMessageThreadNum timerPutMessageThreadNum timerEnableDisruptor
        timerSkipUnknownError timerEnableRetryUntilSuccess timerWarmEnable
        timerProgressLogIntervalMs
        """,
    ),
    **_family(
        "what waits is counted exactly, so there is nothing to check",
        "timerEnableCheckMetrics timerCheckMetricsWhen timerMetricSmallThreshold",
    ),
    **_family(
        "nothing reads it in RocketMQ either: delay levels have queues of their own",
        "timerInterceptDelayLevel disappearTimeAfterStart maxDelayTime",
    ),
    **_family(
        "no version of RocketMQ reads it now: pending transactions are always asked about, "
        "rejectTransactionMessage refuses them altogether",
        "checkTransactionMessageEnable",
    ),
    **_family(
        "pending transactions are counted when asked for, not kept in a file",
        "transactionMetricFlushInterval",
    ),
    **_family(
        "compaction, extended, batch and light queues are not in this version",
        """
        enableCompaction compactionMappedFileSize compactionCqMappedFileSize
        compactionScheduleInternal maxOffsetMapSize compactionThreadNum
        mappedFileSizeConsumeQueueExt bitMapLengthConsumeQueueExt mapperFileSizeBatchConsumeQueue
        searchBcqByCacheEnable maxLmqConsumeQueueNum enableLmqStats
        """,
    ),
    **_family(
        "messages are judged by their properties, which is as fast as by bit maps",
        "enableCalcFilterBitMap",
    ),
    **_family(
        "there are no filter servers; expressions kept by the broker take their place",
        "filterServerNums",
    ),
    **_family(
        "users and rules are in memory, and verdicts are kept until one of them changes",
        """
        authConfigPath userCacheMaxNum userCacheExpiredSecond
        userCacheRefreshSecond aclCacheMaxNum aclCacheExpiredSecond aclCacheRefreshSecond
        statefulAuthenticationCacheMaxNum statefulAuthenticationCacheExpiredSecond
        statefulAuthorizationCacheMaxNum statefulAuthorizationCacheExpiredSecond
        """,
    ),
}

_OTHERWISE: Final = {
    **_family(
        "delayed messages are delivered in their own way here and cannot be tuned",
        """
        enableScheduleMessageStats enableScheduleAsyncDeliver scheduleAsyncDeliverMaxPendingLimit
        scheduleAsyncDeliverMaxResendNum2Blocked delayOffsetUpdateVersionStep
        """,
    ),
    **_family(
        "popping works in its own way here and cannot be tuned",
        """
        reviveQueueNum reviveInterval reviveMaxSlow reviveScanTime reviveAckWaitMs
        enableSkipLongAwaitingAck enablePopLog enablePopBufferMerge popCkStayBufferTime
        popCkStayBufferTimeOut popCkMaxBufferSize popCkOffsetMaxQueueSize enablePopBatchAck
        popPollingMapSize popLongPollingForceNotifyInterval
        enableNotifyBeforePopCalculateLag enableNotifyAfterPopOrderLockRelease
        initPopOffsetByCheckMsgInMem
        popConsumerFSServiceInit popConsumerKVServiceLog
        popConsumerKVServiceInit popConsumerKVServiceEnable popReviveMaxReturnSizePerRead
        popReviveMaxAttemptTimes popResponseReturnActualRetryTopic
        skipWhenCKRePutReachMaxTimes appendAckAsync appendCkAsync
        """,
    ),
    **_family(
        "metrics are served to Prometheus or sent to a collector, not written to the log",
        "metricLoggingExporterIntervalInMills",
    ),
    **_family(
        "statistics and logs are kept in their own way here",
        """
        estimateAccumulation
        enableDetailStat autoDeleteUnusedStats isolateLogEnable commercialEnable
        commercialTimerCount commercialTransCount commercialBigCount commercialBaseCount
        commercialSizePerMsg accountStatsEnable accountStatsPrintZeroValues
        maxStatsIdleTimeInMinutes printChannelGroups printChannelGroupsMinNum
        """,
    ),
    **_family(
        "registration with name servers always sends all topics, uncompressed",
        """
        forceRegister compressedRegister enableSingleTopicRegister enableSplitRegistration
        splitRegistrationSize
        """,
    ),
    "updateNameServerAddrPeriod": "namesrvAddr is read at the start only",
    **_family(
        "what clients, groups and offsets may do is fixed in this version",
        """
        enableBroadcastOffsetStore broadcastOffsetExpireSecond
        broadcastOffsetExpireMaxSecond subscriptionExpiredTimeout
        realTimeNotifyConsumerChange consumerOffsetUpdateVersionStep useStaticSubscription
        flushConsumerOffsetHistoryInterval consumerFallbehindThreshold
        validateSystemTopicWhenUpdateTopic enableRegisterProducer enableCreateSysGroup
        """,
    ),
    **_family(
        "brokers share no container here",
        "isBrokerContainer isInBrokerContainer brokerContainer inBrokerContainer",
    ),
    "clusterName": "it belongs to RocketMQ's access control; brokerClusterName acts",
    "configName": "it belongs to RocketMQ's access control",
    "configBlackList": "what may change at run time is an allow-list here",
}

IGNORED: Final[dict[str, str]] = {
    **_POOLS,
    **_REPLICATION,
    **_MEMORY,
    **_OFF_HEAP,
    **_NETTY,
    **_PATHS,
    **_STORE,
    **_ABSENT,
    **_OTHERWISE,
}
"""Keys of a ``broker.conf`` that are accepted and have no effect, each with the reason."""

_NO_LIGHT_QUEUES: Final = Refusal(_is_on, "light queues are not in this version")

_STATEFUL: Final = (
    "a stateful strategy keeps a verdict for a minute after a password or rule has changed; "
    "verdicts are kept here until something changes, so remove the key"
)
_ONE_PROVIDER: Final = "classes cannot be loaded: there is one provider, which is RocketMQ's own"
_AUTH: Final = "org.apache.rocketmq.auth."
_ACCESS_CLASSES: Final = {
    f"{kind}{what}": Refusal(
        _is_other_than("", f"{_AUTH}{kind}.{package}.{prefix}{kind.capitalize()}{what}"), reason
    )
    for kind in ("authentication", "authorization")
    for what, package, prefix, reason in (
        ("Provider", "provider", "Default", _ONE_PROVIDER),
        ("MetadataProvider", "provider", "Local", _ONE_PROVIDER),
        ("Strategy", "strategy", "Stateless", _STATEFUL),
    )
}

_REFUSED_NETTY: Final = {
    "useTLS": Refusal(_is_on, "set tls.enable=true instead, which is RocketMQ's key for it"),
    "socksProxyConfig": Refusal(_is_other_than("{}"), "proxies are not in this version"),
}

REFUSED_WHEN: Final[dict[str, Refusal]] = {
    **_REFUSED_NETTY,
    **_ACCESS_CLASSES,
    "allAckInSyncStateSet": Refusal(
        _is_on, "it belongs to controller mode, which is not in this version; set inSyncReplicas"
    ),
    "enableControllerMode": Refusal(_is_on, "controller mode is not in this version"),
    "enableRemoteEscape": Refusal(
        _is_on, "a slave that acts for its master stores nothing, here or on other brokers"
    ),
    "duplicationEnable": Refusal(_is_on, "duplication mode is not in this version"),
    "aclEnable": Refusal(
        _is_on,
        "access control 1.0 is gone, as in RocketMQ 5.3.3; set authenticationEnabled and "
        "authorizationEnabled, and migrateAuthFromV1Enabled to take over plain_acl.yml",
    ),
    "rejectPullConsumerEnable": Refusal(_is_on, "pull consumers are always served"),
    "disableConsumeIfConsumerReadSlowly": Refusal(_is_on, "slow consumers are always served"),
    "enableConsumeQueueExt": Refusal(
        _is_on, "queue entries would point into files that are not written; filters work without"
    ),
    "enableLmq": _NO_LIGHT_QUEUES,
    "enableMultiDispatch": _NO_LIGHT_QUEUES,
    "storeType": Refusal(_is_other_than("default"), "only the file store (default) is supported"),
    "rocksdbCQDoubleWriteEnable": Refusal(_is_on, "there is no RocksDB here"),
    "messageStorePlugIn": Refusal(_is_other_than(), "store plug-ins are not in this version"),
    "readOnlyCommitLogStorePaths": Refusal(_is_other_than(), "the log lies in one folder"),
    "fetchNameSrvAddrByDnsLookup": Refusal(
        _is_on, "list the name servers in namesrvAddr, or ask an address server for them"
    ),
}
"""Keys that would weaken a promise if ignored: values that stop the start, with reasons."""

NAMESRV_IGNORED: Final[dict[str, str]] = {
    **_NETTY,
    **_PATHS,
    **_family(
        "there are no thread pools here: one event loop serves all requests",
        """
        defaultThreadPoolNums clientRequestThreadPoolNums defaultThreadPoolQueueCapacity
        clientRequestThreadPoolQueueCapacity unRegisterBrokerQueueCapacity
        """,
    ),
    "productEnvName": "it matters with clusterTest only, which is not in this version",
    "configBlackList": "what may change at run time is an allow-list here",
}
"""Keys of a ``namesrv.conf`` that are accepted and have no effect, each with the reason."""

NAMESRV_REFUSED_WHEN: Final[dict[str, Refusal]] = {
    **_REFUSED_NETTY,
    **_ACCESS_CLASSES,
    "enableControllerInNamesrv": Refusal(_is_on, "controller mode is not in this version"),
    "clusterTest": Refusal(_is_on, "borrowed routes are not in this version"),
}
"""Keys of a ``namesrv.conf`` with the values that stop the start, and the reasons."""
