"""Keys of RocketMQ's ``rmq-proxy.json`` that have no effect here, or that stop the start.

``IGNORED`` has the keys that tune machinery which does not exist here: leaving them in a file does
no harm. ``UNSERVED`` has those that ask for something which is not served: any value but the usual
one stops the start.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from rocketpost.errors import ConfigError

_ONE_LOOP: Final = "calls are served by one event loop, without pools of threads"
_ONE_QUEUE: Final = "requests of the remoting protocol are passed on at once"
_NO_SYNC: Final = "proxies do not talk to each other: brokers know the members of groups"
_NO_LITE: Final = "lite topics are not served"
_USERS: Final = "all users and rules are read every five seconds"
_STATELESS: Final = "a transaction id says where its message is, so nothing is kept"
_KEPT: Final = "what is kept is replaced when it is refreshed"

_POOLS: Final = (
    "grpc",
    "producerProcessor",
    "consumerProcessor",
    "topicRouteService",
    "metadata",
    "transactionHeartbeat",
    "heartbeatSyncer",
    "renew",
)
_METHOD_POOLS: Final = ("Producer", "Consumer", "Route", "ClientManager", "Transaction")
_REMOTING_POOLS: Final = ("Heartbeat", "TopicRoute", "UpdateOffset", "Default")

IGNORED: Final[Mapping[str, str]] = {
    **{
        f"{pool}ThreadPool{size}": _ONE_LOOP
        for pool in _POOLS
        for size in ("Nums", "QueueCapacity")
    },
    **{
        f"grpc{pool}Thread{size}": _ONE_LOOP
        for pool in _METHOD_POOLS
        for size in ("PoolNums", "QueueCapacity")
    },
    **{f"remoting{pool}ThreadPoolNums": _ONE_LOOP for pool in ("SendMessage", "PullMessage")},
    **{f"remoting{pool}ThreadPoolQueueCapacity": _ONE_LOOP for pool in ("Send", "Pull")},
    **{
        f"remoting{pool}ThreadPool{size}": _ONE_LOOP
        for pool in _REMOTING_POOLS
        for size in ("Nums", "QueueCapacity")
    },
    **{
        f"remotingWaitTimeMillsIn{kind}Queue": _ONE_QUEUE
        for kind in ("Send", "Pull", "Heartbeat", "UpdateOffset", "TopicRoute", "Default")
    },
    "proxyMode": "the command decides: mqbroker --enable-proxy is local, mqproxy is for a cluster",
    "grpcBossLoopNum": _ONE_LOOP,
    "grpcWorkerLoopNum": _ONE_LOOP,
    "renewMaxThreadPoolNums": _ONE_LOOP,
    "returnHandleGroupThreadPoolNums": _ONE_LOOP,
    "lockTimeoutMsInHandleGroup": _ONE_LOOP,
    "enablePrintJstack": _ONE_LOOP,
    "printJstackInMillis": _ONE_LOOP,
    "printThreadPoolStatusInMillis": _ONE_LOOP,
    "grpcShutdownTimeSeconds": "streams never end by themselves, so a stop waits one second",
    "enableGrpcEpoll": "the gRPC library chooses its poller",
    "enableBatchAck": "a broker's own port always gathers acknowledgements, and mqproxy never",
    "proxyName": _NO_SYNC,
    "proxyClusterName": _NO_SYNC,
    "heartbeatSyncerTopicClusterName": _NO_SYNC,
    "heartbeatSyncerTopicName": _NO_SYNC,
    "brokerConfigPath": "mqbroker -c names the settings of the broker",
    "rocketmqMQClientNum": "requests of all clients share one connection to each broker",
    "channelExpiredInSeconds": "clients are forgotten after channelExpiredTimeout",
    "contextExpiredInSeconds": "calls are forgotten when they end",
    "topicRouteServiceCacheExpiredSeconds": _KEPT,
    "topicConfigCacheExpiredSeconds": _KEPT,
    "subscriptionGroupConfigCacheExpiredSeconds": _KEPT,
    "topicRouteServiceCacheMaxNum": "routes are kept while their topics are used",
    "tlsCertWatchIntervalMs": "a changed certificate is noticed by the next connection",
    "userCacheExpiredSeconds": _USERS,
    "userCacheRefreshSeconds": _USERS,
    "userCacheMaxNum": _USERS,
    "aclCacheExpiredSeconds": _USERS,
    "aclCacheRefreshSeconds": _USERS,
    "aclCacheMaxNum": _USERS,
    "transactionHeartbeatBatchNum": "all topics with transactions are in one heartbeat",
    "transactionDataExpireScanPeriodMillis": _STATELESS,
    "transactionDataMaxWaitClearMillis": _STATELESS,
    "transactionDataExpireMillis": _STATELESS,
    "transactionDataMaxNum": _STATELESS,
    "maxLiteTopicSize": _NO_LITE,
    "maxLiteRenewNumPerChannel": _NO_LITE,
    "maxSyncLiteSubscriptionRate": _NO_LITE,
    "enableAclRpcHookForClusterMode": (
        "requests to brokers are signed if innerClientAuthenticationCredentials is set"
    ),
    "regionId": "messages carry the region of the broker that stores them",
    "metricsGrpcExporterTarget": "the proxy has no metrics of its own",
    "metricsGrpcExporterHeader": "the proxy has no metrics of its own",
    "metricGrpcExporterTimeOutInMills": "the proxy has no metrics of its own",
    "metricGrpcExporterIntervalInMills": "the proxy has no metrics of its own",
    "metricLoggingExporterIntervalInMills": "the proxy has no metrics of its own",
    "metricsPromExporterPort": "the proxy has no metrics of its own",
    "metricsPromExporterHost": "the proxy has no metrics of its own",
    "metricsLabel": "the proxy has no metrics of its own",
    "metricsInDelta": "the proxy has no metrics of its own",
    "localProxyConnectTimeoutMs": "gRPC clients connect to grpcServerPort",
    "detectTimeout": "it belongs to startDetectorEnable",
    "detectInterval": "it belongs to startDetectorEnable",
    "enableProxyClientReadServiceCleaner": "clients are forgotten after channelExpiredTimeout",
    "proxyClientReadServiceCleanerInactiveTimeoutMillis": (
        "clients are forgotten after channelExpiredTimeout"
    ),
    "proxyClientReadServiceCleanerIntervalMillis": (
        "clients are forgotten after channelExpiredTimeout"
    ),
    "proxyClientAdminPeerRequestTimeoutMillis": _NO_SYNC,
    "proxyClientAdminPeerGrpcTargets": _NO_SYNC,
    "enableRemotingLocalProxyGrpc": "gRPC clients connect to grpcServerPort",
}
"""Keys that are accepted and have no effect, each with the reason."""


class Unserved(NamedTuple):
    """Something that a key asks for and that is not served."""

    usual: tuple[str, ...]
    """The values that ask for nothing."""
    reason: str


_OFF: Final = ("", "false")
_CLASSES: Final = "classes cannot be loaded: there is one provider, which is RocketMQ's own"
_AUTH: Final = "org.apache.rocketmq.auth"
_METADATA: Final = "users and rules are those of the brokers"


def _class_names(kind: str) -> dict[str, tuple[str, ...]]:
    """Return the names of RocketMQ's classes that the keys of one kind of check may have."""
    name = kind.capitalize()
    return {
        "Provider": (f"{_AUTH}.{kind}.provider.Default{name}Provider",),
        "MetadataProvider": (
            f"{_AUTH}.{kind}.provider.Local{name}MetadataProvider",
            f"org.apache.rocketmq.proxy.auth.Proxy{name}MetadataProvider",
        ),
        "Strategy": (f"{_AUTH}.{kind}.strategy.Stateless{name}Strategy",),
    }


UNSERVED: Final[Mapping[str, Unserved]] = {
    **{
        f"{kind}{what}": Unserved(("", *names), _CLASSES)
        for kind in ("authentication", "authorization")
        for what, names in _class_names(kind).items()
    },
    "metricsExporterType": Unserved(
        ("", "DISABLE", "0"), "the proxy has no metrics of its own; scrape the brokers"
    ),
    "traceOn": Unserved(_OFF, "clients of this protocol write no message traces"),
    "sendLatencyEnable": Unserved(_OFF, "brokers that cannot be reached are left out by routes"),
    "startDetectorEnable": Unserved(_OFF, "brokers that cannot be reached are left out by routes"),
    "enableProxyClientAdminCrossProxyQuery": Unserved(_OFF, _NO_SYNC),
    "authenticationWhitelist": Unserved(("",), "every call of gRPC is checked"),
    "authorizationWhitelist": Unserved(("",), "every call of gRPC is checked"),
    "initAuthenticationUser": Unserved(("",), _METADATA + "; create it there"),
    "migrateAuthFromV1Enabled": Unserved(_OFF, _METADATA + "; migrate them there"),
}
"""Keys whose unusual values stop the start."""


def refuse_unserved(values: Mapping[str, str]) -> None:
    """Raise if a setting asks for something that is not served.

    Raises:
        ConfigError: The text names the key and the reason.
    """
    for key, unserved in UNSERVED.items():
        value = values.get(key, "").strip()
        if value not in unserved.usual:
            raise ConfigError(f"{key}={value} is not supported: {unserved.reason}")
