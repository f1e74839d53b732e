"""The messages of the 5.x protocol, and its enums.

The proto text is ``rocketmq_v2.proto``; ``descriptor`` is its compiled form (ADR 0190).
"""
