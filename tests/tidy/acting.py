"""Tests that prove that each setting acts: their outcome changes with the value.

Each test is run by ``test_settings_act`` with the setting unread, and has to fail then. That a
value is parsed, checked or shown is no proof.
"""

from __future__ import annotations

from typing import Final

_S: Final = "tests/integration/settings/"
_NETWORK: Final = f"{_S}test_network.py::test_"
_SERVING: Final = f"{_S}test_serving.py::test_"
_MESSAGES: Final = f"{_S}test_messages.py::test_"
_STORE: Final = f"{_S}test_store.py::test_"
_TIMER: Final = f"{_S}test_timer.py::test_"
_SYNC_MASTER: Final = "tests/integration/test_sync_master.py::test_"
_REPLICATION: Final = "tests/integration/test_replication_settings.py::test_"
_GROUP_SETTINGS: Final = "tests/integration/test_group_settings.py::test_"
_NAMESRV: Final = f"{_S}test_namesrv.py::test_"
_BOTH: Final = f"{_S}test_topics_and_groups.py::test_"
_CLIENT: Final = "tests/unit/client/test_settings_act.py::test_"
_TIMES: Final = "tests/unit/client/test_times_act.py::test_"
_PRODUCER: Final = "tests/unit/client/producer/test_producer.py::test_"
_PUSH: Final = "tests/unit/client/consumer/push/test_consumer.py::test_"
_ORDER: Final = "tests/unit/client/consumer/push/test_orderly.py::test_"
_OFFSETS: Final = "tests/unit/client/test_offset_stores.py::test_"
_LITE: Final = "tests/unit/client/consumer/test_lite_pull_consumer.py::test_"
_RETENTION: Final = "tests/unit/store/test_retention.py::test_"
_FILTER: Final = "tests/unit/server/features/test_filter.py::test_"
_ACTING: Final = "tests/unit/server/replication/test_acting.py::test_"
_TERMS: Final = "tests/integration/test_terms.py::test_"
_GROUP: Final = f"{_S}test_group.py::test_"
_METRICS: Final = f"{_S}test_metrics.py::test_"
_OTLP: Final = f"{_S}test_otlp.py::test_"
_LOGS: Final = "tests/unit/server/logs/test_output.py::test_"
_CERTIFICATES: Final = "tests/unit/server/secure/test_certificates.py::test_"
_UNIT_NAMESRV: Final = "tests/unit/server/namesrv/test_handlers.py::test_"

_ACCESS: Final = f"{_S}test_access.py::test_"
ACCESS: Final = {
    "logFormat": f"{_LOGS}logFormat",
    "logLevel": f"{_LOGS}logLevel",
    "logFile": f"{_LOGS}logFile",
    "logFileBytes": f"{_LOGS}logFileBytes_and_logFileCount",
    "logFileCount": f"{_LOGS}logFileBytes_and_logFileCount",
    "authenticationEnabled": f"{_ACCESS}authenticationEnabled",
    "authorizationEnabled": f"{_ACCESS}authorizationEnabled",
    "authenticationWhitelist": f"{_ACCESS}authenticationWhitelist",
    "authorizationWhitelist": f"{_ACCESS}authorizationWhitelist",
    "initAuthenticationUser": f"{_ACCESS}initAuthenticationUser",
    "innerClientAuthenticationCredentials": f"{_ACCESS}innerClientAuthenticationCredentials",
    "authSecretKeyFile": f"{_ACCESS}authSecretKeyFile",
    "migrateAuthFromV1Enabled": f"{_ACCESS}migrateAuthFromV1Enabled_and_plainAclPath",
    "plainAclPath": f"{_ACCESS}migrateAuthFromV1Enabled_and_plainAclPath",
}

BROKER: Final = {
    **ACCESS,
    "brokerClusterName": f"{_NETWORK}names_and_addresses",
    "brokerName": f"{_NETWORK}names_and_addresses",
    "listenPort": f"{_NETWORK}names_and_addresses",
    "bindAddress": f"{_NETWORK}names_and_addresses",
    "brokerIP1": f"{_NETWORK}names_and_addresses",
    "regionId": f"{_NETWORK}names_and_addresses",
    "namesrvAddr": f"{_NETWORK}namesrvAddr",
    "fetchNamesrvAddrByAddressServer": f"{_NETWORK}fetchNamesrvAddrByAddressServer",
    "rmqAddressServerDomain": f"{_NETWORK}fetchNamesrvAddrByAddressServer",
    "rmqAddressServerSubGroup": f"{_NETWORK}fetchNamesrvAddrByAddressServer",
    "fetchNamesrvAddrInterval": f"{_NETWORK}fetchNamesrvAddrByAddressServer",
    "serverChannelMaxIdleTimeSeconds": f"{_NETWORK}serverChannelMaxIdleTimeSeconds",
    "unwrittenBytesMax": (
        "tests/integration/test_fairness.py::test_peers_that_do_not_read_take_no_more_than_the_bound"
    ),
    "registerNameServerPeriod": f"{_NETWORK}registerNameServerPeriod",
    "registerBrokerTimeoutMills": f"{_NETWORK}registerBrokerTimeoutMills",
    "metricsExporterType": f"{_METRICS}metricsExporterType",
    "metricsPromExporterPort": f"{_METRICS}the_port_and_host_of_metrics",
    "metricsPromExporterHost": f"{_METRICS}the_port_and_host_of_metrics",
    "metricsLabel": f"{_METRICS}metricsLabel",
    "metricsOtelCardinalityLimit": f"{_METRICS}metricsOtelCardinalityLimit",
    "metricsGrpcExporterTarget": f"{_OTLP}metricsGrpcExporterTarget",
    "metricsGrpcExporterHeader": f"{_OTLP}metricsGrpcExporterHeader",
    "metricGrpcExporterTimeOutInMills": f"{_OTLP}metricGrpcExporterTimeOutInMills",
    "metricGrpcExporterIntervalInMills": f"{_OTLP}metricGrpcExporterIntervalInMills",
    "metricsExportBatchMaxDataPoints": f"{_OTLP}metricsExportBatchMaxDataPoints",
    "metricsInDelta": f"{_OTLP}metricsInDelta",
    "brokerPermission": f"{_SERVING}brokerPermission",
    "defaultTopicQueueNums": f"{_SERVING}topics_created_by_use",
    "autoCreateTopicEnable": f"{_SERVING}topics_created_by_use",
    "autoCreateSubscriptionGroup": f"{_SERVING}topics_created_by_use",
    "autoCreatePerSecond": f"{_MESSAGES}autoCreatePerSecond",
    "autoCreatedExpireHours": ("tests/unit/broker/test_expiry.py::test_the_age_is_a_setting"),
    "clusterTopicEnable": f"{_SERVING}topics_of_the_broker_itself",
    "brokerTopicEnable": f"{_SERVING}topics_of_the_broker_itself",
    "traceTopicEnable": f"{_SERVING}topics_of_the_broker_itself",
    "msgTraceTopicName": f"{_SERVING}topics_of_the_broker_itself",
    "traceOn": f"{_SERVING}traceOn",
    "sendLaneEnable": (
        "tests/simulation/lane/test_lane_rules.py::test_the_lane_is_off_where_it_must_be"
    ),
    "pullLaneEnable": ("tests/simulation/lane/test_pull_rules.py::test_the_lane_can_be_turned_off"),
    "storeReplyMessageEnable": (
        "tests/unit/server/features/test_reply.py::test_a_reply_is_stored_if_replies_are"
    ),
    "slaveReadEnable": f"{_TERMS}a_follower_refuses_pulls_unless_slaves_may_be_read",
    "offsetCheckInSlave": (
        f"{_TERMS}a_follower_alone_corrects_offsets_if_offsetCheckInSlave_is_set"
    ),
    "longPollingEnable": f"{_SERVING}longPollingEnable",
    "shortPollingTimeMills": f"{_SERVING}shortPollingTimeMills",
    "litePullMessageEnable": f"{_SERVING}litePullMessageEnable",
    "notifyConsumerIdsChangedEnable": f"{_SERVING}notifyConsumerIdsChangedEnable",
    "useServerSideResetOffset": f"{_SERVING}useServerSideResetOffset",
    "flushConsumerOffsetInterval": f"{_STORE}flushConsumerOffsetInterval",
    "flushDelayOffsetInterval": f"{_STORE}flushDelayOffsetInterval",
    "channelExpiredTimeout": f"{_SERVING}channelExpiredTimeout",
    "rocketmq.broker.rebalance.lockMaxLiveTime": f"{_SERVING}lockMaxLiveTime",
    "startAcceptSendRequestTimeStamp": f"{_SERVING}startAcceptSendRequestTimeStamp",
    "syncFlushTimeout": f"{_SERVING}syncFlushTimeout",
    "accessMessageInMemoryMaxRatio": f"{_SERVING}how_much_a_pull_returns",
    "maxTransferBytesOnMessageInMemory": f"{_SERVING}how_much_a_pull_returns",
    "maxTransferCountOnMessageInMemory": f"{_SERVING}how_much_a_pull_returns",
    "maxTransferBytesOnMessageInDisk": f"{_SERVING}how_much_a_pull_returns",
    "maxTransferCountOnMessageInDisk": f"{_SERVING}how_much_a_pull_returns",
    "pullBatchMaxMessageCount": f"{_SERVING}how_much_a_pull_returns",
    "maxFilterMessageSize": f"{_SERVING}maxFilterMessageSize",
    "enablePropertyFilter": f"{_SERVING}enablePropertyFilter",
    "filterSupportRetry": f"{_SERVING}filterSupportRetry",
    "filterDataCleanTimeSpan": f"{_SERVING}filterDataCleanTimeSpan",
    "namedFilterEnable": f"{_FILTER}namedFilterEnable",
    "expectConsumerNumUseFilter": f"{_FILTER}the_shape_of_bloom_filters",
    "maxErrorRateOfBloomFilter": f"{_FILTER}the_shape_of_bloom_filters",
    "maxMsgsNumBatch": f"{_SERVING}how_much_a_query_returns",
    "defaultQueryMaxNum": f"{_SERVING}how_much_a_query_returns",
    "transactionTimeOut": f"{_MESSAGES}when_and_how_often_a_producer_is_asked",
    "transactionCheckMax": f"{_MESSAGES}when_and_how_often_a_producer_is_asked",
    "transactionCheckInterval": f"{_MESSAGES}when_and_how_often_a_producer_is_asked",
    "transactionOpMsgMaxSize": f"{_MESSAGES}when_the_end_of_a_transaction_is_noted",
    "transactionOpBatchInterval": f"{_MESSAGES}when_the_end_of_a_transaction_is_noted",
    "enableTopicMessageTypeCheck": f"{_BOTH}message_type_of_a_topic_and_whether_it_is_checked",
    "enableMixedMessageType": f"{_BOTH}enableMixedMessageType",
    "rejectTransactionMessage": f"{_SERVING}rejectTransactionMessage",
    "dedupSeconds": f"{_MESSAGES}dedupSeconds_and_the_attribute_of_a_topic",
    "dedupKeysMax": f"{_MESSAGES}dedupKeysMax",
    "idempotentProducersMax": f"{_MESSAGES}idempotentProducersMax",
    "idempotentProducerIdleSeconds": f"{_MESSAGES}idempotentProducerIdleSeconds",
    "flushProducerStateInterval": f"{_MESSAGES}flushProducerStateInterval",
    "recallMessageEnable": f"{_MESSAGES}recalls",
    "allowRecallWhenBrokerNotWriteable": f"{_MESSAGES}recalls",
    "pullThreadPoolQueueCapacity": f"{_SERVING}how_many_pulls_are_held",
    "connectionHeldMax": f"{_SERVING}how_many_pulls_are_held",
    "maxPopPollingSize": f"{_MESSAGES}how_many_pops_are_held",
    "popPollingSize": f"{_MESSAGES}how_many_pops_are_held",
    "enableRetryTopicV2": f"{_MESSAGES}enableRetryTopicV2",
    "retrieveMessageFromPopRetryTopicV1": f"{_MESSAGES}retrieveMessageFromPopRetryTopicV1",
    "popFromRetryProbability": f"{_MESSAGES}popFromRetryProbability",
    "clearRetryTopicWhenDeleteTopic": f"{_MESSAGES}clearRetryTopicWhenDeleteTopic",
    "enablePopMessageThreshold": f"{_MESSAGES}how_much_may_be_popped_and_unacknowledged",
    "popInflightMessageThreshold": f"{_MESSAGES}how_much_may_be_popped_and_unacknowledged",
    "serverLoadBalancerEnable": f"{_MESSAGES}queues_assigned_by_the_broker",
    "defaultMessageRequestMode": f"{_MESSAGES}queues_assigned_by_the_broker",
    "defaultPopShareQueueNum": f"{_MESSAGES}defaultPopShareQueueNum",
    "loadBalancePollNameServerInterval": f"{_MESSAGES}loadBalancePollNameServerInterval",
    "totalReplicas": f"{_ACTING}it_prepares_before_it_registers",
    "skipPreOnline": f"{_ACTING}without_preparation_it_registers_at_once",
    "syncBrokerMemberGroupPeriod": f"{_ACTING}the_settings_say_how_often_it_asks_and_tells",
    "brokerHeartbeatInterval": f"{_ACTING}the_settings_say_how_often_it_asks_and_tells",
    "enableSlaveActingMaster": f"{_GROUP}enableSlaveActingMaster",
    "compatibleWithOldNameSrv": f"{_GROUP}compatibleWithOldNameSrv",
    "sendHeartbeatTimeoutMillis": f"{_GROUP}sendHeartbeatTimeoutMillis",
    "brokerNotActiveTimeoutMillis": f"{_GROUP}brokerNotActiveTimeoutMillis",
    "lockInStrictMode": f"{_GROUP}lockInStrictMode",
    "brokerRole": f"{_REPLICATION}brokerRole_and_brokerId",
    "brokerId": f"{_REPLICATION}brokerRole_and_brokerId",
    "haListenPort": f"{_REPLICATION}haListenPort_and_brokerIP2",
    "brokerIP2": f"{_REPLICATION}haListenPort_and_brokerIP2",
    "haMasterAddress": "tests/integration/test_replication.py::test_haMasterAddress_is_enough",
    "haTrustedNetworks": (
        "tests/integration/test_peer_ports.py::test_haTrustedNetworks_serves_a_slave_of_rocketmq"
    ),
    "haSendHeartbeatInterval": f"{_REPLICATION}haSendHeartbeatInterval",
    "haHousekeepingInterval": f"{_REPLICATION}haHousekeepingInterval",
    "haTransferBatchSize": f"{_REPLICATION}haTransferBatchSize",
    "haMaxGapNotInSync": f"{_REPLICATION}haMaxGapNotInSync",
    "haFlowControlEnable": f"{_REPLICATION}haFlowControlEnable_and_maxHaTransferByteInSecond",
    "maxHaTransferByteInSecond": f"{_REPLICATION}haFlowControlEnable_and_maxHaTransferByteInSecond",
    "slaveTimeout": f"{_REPLICATION}slaveTimeout",
    "inSyncReplicas": f"{_SYNC_MASTER}inSyncReplicas_counts_the_master",
    "minInSyncReplicas": f"{_REPLICATION}enableAutoInSyncReplicas_and_minInSyncReplicas",
    "enableAutoInSyncReplicas": f"{_REPLICATION}enableAutoInSyncReplicas_and_minInSyncReplicas",
    "syncFromLastFile": f"{_REPLICATION}syncFromLastFile",
    "syncMasterFlushOffsetWhenStartup": f"{_REPLICATION}syncMasterFlushOffsetWhenStartup",
}

STORE: Final = {
    "storePathRootDir": f"{_STORE}paths_and_sizes_of_files",
    "storePathCommitLog": f"{_STORE}paths_and_sizes_of_files",
    "mappedFileSizeCommitLog": f"{_STORE}paths_and_sizes_of_files",
    "mappedFileSizeConsumeQueue": f"{_STORE}paths_and_sizes_of_files",
    "maxHashSlotNum": f"{_STORE}paths_and_sizes_of_files",
    "maxIndexNum": f"{_STORE}paths_and_sizes_of_files",
    "maxMessageSize": f"{_STORE}maxMessageSize",
    "autoMessageVersionOnTopicLen": (
        "tests/unit/store/recovery/test_recovery.py::test_long_topics_have_a_format_of_their_own"
    ),
    "checkCRCOnRecover": (
        "tests/unit/store/recovery/test_recovery.py::test_bodies_are_verified_if_checkCRCOnRecover_says_so"
    ),
    "enabledAppendPropCRC": (
        "tests/unit/store/test_checksum.py::"
        "test_enabledAppendPropCRC_ends_each_record_with_its_checksum"
    ),
    "forceVerifyPropCRC": (
        "tests/unit/store/test_checksum.py::"
        "test_forceVerifyPropCRC_refuses_records_without_a_checksum"
    ),
    "checkCRCOnReadInterval": (
        "tests/unit/store/integrity/test_read_check.py::"
        "test_everything_is_checked_each_time_if_the_interval_is_zero"
    ),
    "scrubCommitLogEnable": "tests/unit/store/integrity/test_scrub.py::test_scrubCommitLogEnable",
    "scrubCommitLogIntervalHours": (
        "tests/unit/store/integrity/test_scrub.py::test_scrubCommitLogIntervalHours"
    ),
    "scrubCommitLogBytesPerSecond": (
        "tests/unit/store/integrity/test_scrub.py::test_scrubCommitLogBytesPerSecond"
    ),
    "flushDiskType": f"{_SERVING}syncFlushTimeout",
    "flushIntervalCommitLog": f"{_STORE}flushIntervalCommitLog",
    "flushIntervalConsumeQueue": f"{_STORE}when_queues_are_flushed",
    "flushConsumeQueueThoroughInterval": f"{_STORE}when_queues_are_flushed",
    "messageIndexEnable": f"{_STORE}messageIndexEnable",
    "deleteWhen": f"{_RETENTION}each_trigger_deletes_expired_segments",
    "fileReservedTime": f"{_RETENTION}each_setting_decides",
    "diskMaxUsedSpaceRatio": f"{_RETENTION}each_setting_decides",
    "diskSpaceCleanForciblyRatio": f"{_RETENTION}each_setting_decides",
    "diskSpaceWarningLevelRatio": f"{_RETENTION}each_setting_decides",
    "cleanFileForciblyEnable": f"{_RETENTION}writes_are_rejected_even_if_nothing_may_be_deleted",
    "cleanResourceInterval": f"{_STORE}cleanResourceInterval",
    "deleteFileBatchMax": f"{_RETENTION}each_setting_decides",
    "messageDelayLevel": f"{_STORE}messageDelayLevel",
    "timerWheelEnable": f"{_TIMER}timerWheelEnable",
    "timerPrecisionMs": f"{_TIMER}timerPrecisionMs",
    "timerRollWindowSlot": f"{_TIMER}timerRollWindowSlot",
    "timerMaxDelaySec": f"{_TIMER}timerMaxDelaySec",
    "timerFlushIntervalMs": f"{_TIMER}timerFlushIntervalMs",
    "mappedFileSizeTimerLog": f"{_TIMER}files_of_the_timer",
    "timerCongestNumEachSlot": f"{_TIMER}timerCongestNumEachSlot",
    "timerStopEnqueue": f"{_TIMER}a_stopped_timer",
    "timerStopDequeue": f"{_TIMER}a_stopped_timer",
}

MEMBER: Final = {
    "enableDLegerCommitLog": f"{_GROUP_SETTINGS}a_member_is_led_by_another",
    "dLegerGroup": f"{_GROUP_SETTINGS}members_of_another_group_are_refused",
    "dLegerPeers": f"{_GROUP_SETTINGS}a_member_is_led_by_another",
    "dLegerSelfId": f"{_GROUP_SETTINGS}a_member_is_led_by_another",
    "preferredLeaderId": f"{_GROUP_SETTINGS}preferredLeaderId",
}
NAMESRV: Final = {
    **ACCESS,
    "authConfigPath": f"{_ACCESS}authConfigPath_and_clusterName",
    "clusterName": f"{_ACCESS}authConfigPath_and_clusterName",
    "listenPort": f"{_NAMESRV}listenPort_and_bindAddress",
    "bindAddress": f"{_NAMESRV}listenPort_and_bindAddress",
    "kvConfigPath": f"{_NAMESRV}kvConfigPath",
    "scanNotActiveBrokerInterval": f"{_NAMESRV}scanNotActiveBrokerInterval",
    "orderMessageEnable": f"{_UNIT_NAMESRV}ordered_topics_when_enabled",
    "returnOrderTopicConfigToBroker": f"{_UNIT_NAMESRV}brokers_get_the_ordered_topics",
    "supportActingMaster": f"{_NAMESRV}supportActingMaster",
    "notifyMinBrokerIdChanged": (
        "tests/integration/test_namesrv.py::test_a_slave_is_told_that_its_master_is_gone_or_back"
    ),
    "enableAllTopicList": f"{_UNIT_NAMESRV}lists_can_be_switched_off",
    "enableTopicList": f"{_UNIT_NAMESRV}lists_can_be_switched_off",
    "needWaitForService": f"{_UNIT_NAMESRV}routes_can_be_withheld_after_the_start",
    "waitSecondsForService": f"{_NAMESRV}waitSecondsForService",
    "deleteTopicWithBrokerRegistration": f"{_NAMESRV}deleteTopicWithBrokerRegistration",
    "serverChannelMaxIdleTimeSeconds": f"{_NAMESRV}serverChannelMaxIdleTimeSeconds",
    "brokerCountMax": f"{_NAMESRV}how_many_brokers_are_known",
    "brokerCountPerHostMax": f"{_NAMESRV}how_many_brokers_are_known",
    "routeEntryCountMax": f"{_NAMESRV}routeEntryCountMax",
}

CLIENT: Final = {
    "name_servers": f"{_CLIENT}route_seconds",
    "address_server": (
        "tests/unit/client/test_name_servers.py::test_the_address_server_is_found_where_java_looks"
    ),
    "address_group": (
        "tests/unit/client/test_name_servers.py::test_the_address_server_is_found_where_java_looks"
    ),
    "unit_name": (
        "tests/unit/client/test_name_servers.py::test_the_address_server_is_found_where_java_looks"
    ),
    "instance_name": (
        "tests/unit/client/blocking/test_blocking.py::test_a_named_client_has_an_id_of_its_own_in_a_child"
    ),
    "client_ip": f"{_CLIENT}client_ip",
    "call_timeout": f"{_CLIENT}call_timeout",
    "route_seconds": f"{_CLIENT}route_seconds",
    "heartbeat_seconds": f"{_TIMES}heartbeat_seconds",
    "credentials": "tests/unit/client/test_credentials.py::test_every_request_is_signed",
    "tls": "tests/integration/test_tls.py::test_every_kind_of_request_works_with_tls",
}

PRODUCER: Final = {
    "send_timeout": f"{_PRODUCER}silence_is_a_timeout_within_the_budget",
    "attempt_timeout": f"{_PRODUCER}a_bound_per_attempt_leaves_time_for_another_broker",
    "retries": f"{_CLIENT}retries",
    "retry_codes": f"{_CLIENT}retry_codes",
    "retry_not_stored_ok": f"{_PRODUCER}a_status_that_is_not_ok_is_retried_if_wished",
    "message_bytes_max": f"{_PRODUCER}batches_split_under_the_limit_and_give_a_result_each",
    "batch_count_max": f"{_PRODUCER}batches_split_by_count_too",
    "compress_bytes_min": f"{_CLIENT}compress_bytes_min",
    "compression": f"{_PRODUCER}large_bodies_are_compressed",
    "compression_level": f"{_CLIENT}compression_level",
    "auto_create_topic": f"{_CLIENT}topics_that_are_to_be_made",
    "auto_create_queues": f"{_CLIENT}topics_that_are_to_be_made",
    "in_flight_max": f"{_PRODUCER}many_sends_are_under_way_but_no_more_than_allowed",
    "in_flight_bytes_max": f"{_CLIENT}in_flight_bytes_max",
    "avoid_slow_brokers": f"{_PRODUCER}slow_brokers_are_avoided_if_wished",
    "auto_batch": f"{_CLIENT}auto_batch_seconds",
    "auto_batch_bytes": (
        "tests/unit/client/producer/test_gathering.py::test_a_full_group_does_not_wait"
    ),
    "auto_batch_seconds": f"{_CLIENT}auto_batch_seconds",
    "enable_trace": f"{_CLIENT}enable_trace_of_producers",
    "trace_topic": "tests/integration/test_admin_traces.py::test_another_topic_may_hold_the_traces",
    "enable_spans": "tests/integration/test_spans.py::test_a_handler_is_a_child_of_the_send",
}

PULL: Final = {
    "model": f"{_OFFSETS}a_broadcasting_pull_consumer_keeps_its_offsets_in_a_file",
    "offset_directory": f"{_OFFSETS}a_broadcasting_pull_consumer_keeps_its_offsets_in_a_file",
    "pull_timeout": f"{_CLIENT}how_long_a_pull_is_waited_for",
    "hold_seconds": f"{_CLIENT}hold_seconds_of_pull_consumers",
    "hold_timeout": f"{_CLIENT}how_long_a_pull_is_waited_for",
}

PUSH: Final = {
    "model": f"{_ORDER}broadcasting_in_order_needs_no_lock",
    "offset_directory": (
        "tests/integration/test_client_groups.py::test_a_broadcasting_member_continues_from_its_file"
    ),
    "start_from": f"{_ORDER}a_new_group_starts_at_the_configured_place",
    "start_timestamp_ms": (
        "tests/integration/test_client_groups.py::test_a_new_group_starts_at_the_configured_place"
    ),
    "concurrency": f"{_CLIENT}concurrency",
    "batch_max": f"{_ORDER}batches_are_taken_in_order",
    "pull_count_max": f"{_CLIENT}the_pull_requests_of_a_push_consumer",
    "pull_bytes_max": f"{_CLIENT}the_pull_requests_of_a_push_consumer",
    "pull_interval": f"{_OFFSETS}pulls_that_found_something_are_followed_by_the_interval",
    "cached_count_max": f"{_CLIENT}when_fetching_of_a_push_consumer_rests",
    "cached_bytes_max": f"{_CLIENT}when_fetching_of_a_push_consumer_rests",
    "cached_span_max": f"{_CLIENT}when_fetching_of_a_push_consumer_rests",
    "topic_count_max": f"{_CLIENT}when_fetching_of_a_push_consumer_rests",
    "topic_bytes_max": f"{_CLIENT}when_fetching_of_a_push_consumer_rests",
    "hold_seconds": f"{_CLIENT}the_pull_requests_of_a_push_consumer",
    "pull_timeout": f"{_CLIENT}how_long_a_fetch_is_waited_for_and_rests_after_a_failure",
    "error_seconds": f"{_CLIENT}how_long_a_fetch_is_waited_for_and_rests_after_a_failure",
    "retry_max": f"{_ORDER}a_message_that_fails_too_often_goes_to_the_dead_letters",
    "record_failures": f"{_PUSH}why_it_failed_can_be_kept_here",
    "suspend_seconds": f"{_TIMES}suspend_seconds",
    "local_retry_seconds": f"{_TIMES}local_retry_seconds",
    "consume_timeout": f"{_PUSH}a_message_handled_for_too_long_is_sent_back",
    "client_rebalance": "tests/unit/client/consumer/push/test_popping.py::test_fields_of_a_pop",
    "pop_count_max": "tests/unit/client/consumer/push/test_popping.py::test_fields_of_a_pop",
    "pop_invisible_seconds": (
        "tests/unit/client/consumer/push/test_popping.py::test_fields_of_a_pop"
    ),
    "pop_threshold": (
        "tests/unit/client/consumer/push/test_popping.py::test_popping_rests_while_too_much_is_unfinished"
    ),
    "rebalance_seconds": f"{_CLIENT}intervals_of_commits_and_rebalances",
    "lock_renew_seconds": f"{_ORDER}a_lost_lock_stops_handling_until_it_is_granted_again",
    "lock_trust_seconds": f"{_ORDER}a_lock_counts_for_a_while_without_renewal",
    "persist_seconds": f"{_CLIENT}intervals_of_commits_and_rebalances",
    "stop_seconds": f"{_ORDER}a_thread_that_is_still_at_work_keeps_its_lock_over_a_stop",
    "by_priority": (
        "tests/integration/test_priority.py::test_a_push_consumer_handles_its_cached_messages_by_level"
    ),
    "enable_trace": f"{_CLIENT}traces_of_consumers",
    "trace_topic": f"{_CLIENT}traces_of_consumers",
    "enable_spans": "tests/integration/test_spans.py::test_a_retry_is_in_the_same_trace",
}

LITE: Final = {
    "model": f"{_LITE}a_broadcasting_member_gets_every_queue_and_keeps_its_own_offsets",
    "offset_directory": f"{_LITE}a_broadcasting_member_gets_every_queue_and_keeps_its_own_offsets",
    "start_from": f"{_CLIENT}where_a_lite_pull_consumer_starts",
    "start_timestamp_ms": f"{_CLIENT}where_a_lite_pull_consumer_starts",
    "auto_commit": f"{_LITE}without_auto_commit_only_commits_commit",
    "commit_seconds": f"{_LITE}a_due_commit_covers_earlier_polls_only",
    "pull_count_max": f"{_CLIENT}the_pull_requests_of_a_lite_pull_consumer",
    "pull_bytes_max": f"{_CLIENT}the_pull_requests_of_a_lite_pull_consumer",
    "cached_count_max": f"{_CLIENT}when_fetching_of_a_lite_pull_consumer_rests",
    "cached_bytes_max": f"{_CLIENT}when_fetching_of_a_lite_pull_consumer_rests",
    "cached_span_max": f"{_CLIENT}when_fetching_of_a_lite_pull_consumer_rests",
    "topic_count_max": f"{_CLIENT}when_fetching_of_a_lite_pull_consumer_rests",
    "hold_seconds": f"{_CLIENT}the_pull_requests_of_a_lite_pull_consumer",
    "pull_timeout": f"{_CLIENT}how_long_a_fetch_is_waited_for_and_rests_after_a_failure",
    "error_seconds": f"{_CLIENT}how_long_a_fetch_is_waited_for_and_rests_after_a_failure",
    "rebalance_seconds": f"{_CLIENT}how_often_a_lite_pull_consumer_shares_out_queues",
}

TOPIC: Final = {
    "perm": f"{_BOTH}perm_of_a_topic",
    "order": f"{_BOTH}order_of_a_topic",
    "read_queue_nums": f"{_BOTH}queues_of_a_topic",
    "write_queue_nums": f"{_BOTH}queues_of_a_topic",
    "topic_filter_type": f"{_BOTH}topicFilterType",
    "topic_sys_flag": f"{_BOTH}flags_that_come_with_a_pull",
}

TOPIC_ATTRIBUTES: Final = {
    "message.type": f"{_BOTH}message_type_of_a_topic_and_whether_it_is_checked",
    "dedup.seconds": f"{_MESSAGES}dedupSeconds_and_the_attribute_of_a_topic",
}

GROUP: Final = {
    "consume_enable": f"{_BOTH}consumeEnable",
    "consume_broadcast_enable": f"{_BOTH}consumeBroadcastEnable",
    "consume_message_orderly": f"{_BOTH}the_retry_topic_of_a_group",
    "retry_queue_nums": f"{_BOTH}the_retry_topic_of_a_group",
    "retry_max_times": f"{_BOTH}retryMaxTimes",
    "group_retry_policy": f"{_BOTH}groupRetryPolicy_sets_when_a_message_is_redelivered",
    "broker_id": f"{_TERMS}a_group_says_which_broker_serves_its_pulls",
    "which_broker_when_consume_slowly": f"{_TERMS}a_group_says_which_broker_serves_its_pulls",
    "group_sys_flag": f"{_BOTH}flags_that_come_with_a_pull",
    "notify_consumer_ids_changed_enable": f"{_SERVING}notifyConsumerIdsChangedEnable",
}

GROUP_ATTRIBUTES: Final = {
    "priority.factor": (
        "tests/integration/test_priority.py::test_a_group_may_have_some_pops_go_by_chance"
    ),
    "retention.hold": (
        "tests/integration/test_retention_hold.py::"
        "test_segments_stay_until_the_group_has_passed_them"
    ),
}

TLS: Final = {
    "tls.server.mode": f"{_CERTIFICATES}the_mode_decides_who_is_served",
    "tls.config.file": f"{_CERTIFICATES}settings_may_stand_in_a_file",
    "tls.test.mode.enable": f"{_CERTIFICATES}a_test_certificate_is_made_when_asked_for",
    "tls.server.keyPath": f"{_CERTIFICATES}missing_and_wrong_files_stop_the_start",
    "tls.server.keyPassword": f"{_CERTIFICATES}a_key_may_have_a_password",
    "tls.server.certPath": f"{_CERTIFICATES}missing_and_wrong_files_stop_the_start",
    "tls.server.need.client.auth": f"{_CERTIFICATES}clients_prove_who_they_are",
    "tls.server.authClient": (
        "tests/unit/server/settings/test_tls.py::test_settings_that_would_not_protect_are_refused"
    ),
    "tls.server.trustCertPath": f"{_CERTIFICATES}clients_prove_who_they_are",
    "tls.server.userRules": f"{_CERTIFICATES}clients_prove_who_they_are",
    "tls.enable": f"{_CERTIFICATES}own_connections",
    "tls.client.keyPath": f"{_CERTIFICATES}own_connections",
    "tls.client.keyPassword": f"{_CERTIFICATES}own_connections",
    "tls.client.certPath": f"{_CERTIFICATES}own_connections",
    "tls.client.authServer": f"{_CERTIFICATES}own_connections",
    "tls.client.checkHostName": f"{_CERTIFICATES}own_connections",
    "tls.client.trustCertPath": f"{_CERTIFICATES}own_connections",
    "tls.ciphers": f"{_CERTIFICATES}ciphers_and_protocols",
    "tls.protocols": f"{_CERTIFICATES}ciphers_and_protocols",
    "tls.reload.interval": f"{_CERTIFICATES}the_interval_of_looks_is_a_setting",
    "proxyProtocolTrusted": f"{_CERTIFICATES}load_balancers_are_listed",
}

WITHOUT_EFFECT: Final = {
    "broker": set[str](),
    "topic": {"attributes", "topic_name"},
    "topic attributes": {"queue.type", "cleanup.policy", "reserve.time"},
    "group": {
        "attributes",
        "group_name",
        "consume_timeout_minute",
        "consume_from_min_enable",
    },
}
"""Fields with only one valid value, and names; other values are refused with the reason. Only
``consume_from_min_enable`` is accepted without an effect, as in RocketMQ (ADR 0059)."""
