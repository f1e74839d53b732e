"""Filter expressions: RocketMQ's SQL92 grammar, read, checked and compiled. Pure.

Brokers judge messages with them, clients check them before they subscribe. Every expression has
bounds (``tokens.LENGTH_MAX``, ``nodes.DEPTH_MAX``, ``parser.OPERANDS_MAX``, ``parser.LIST_MAX``):
a hostile one costs little to read, and no more than a known amount for each message.
"""

from __future__ import annotations

from rocketpost.filter.expression import Expression, check_filter, compile_filter

__all__ = ["Expression", "check_filter", "compile_filter"]
