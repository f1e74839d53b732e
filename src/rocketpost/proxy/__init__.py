"""The proxy: RocketMQ's 5.x protocol (gRPC), for the official clients of every language.

``wire`` has the messages of the protocol, ``services`` its methods and ``server`` the port. The
methods reach brokers through ``backend``: over the SDK's connections, or, in a broker's own
process, by ``server.proxy.local``. Needs the extra ``grpc``; nothing imports this package until the
proxy is started.
"""
