"""Filter expressions in RocketMQ's SQL92 grammar: parsing, checking and compiling. Pure.

Brokers filter messages with them; clients check them before they subscribe. Every expression has
bounds (``tokens.LENGTH_MAX``, ``nodes.DEPTH_MAX``, ``parser.OPERANDS_MAX``, ``parser.LIST_MAX``),
so that a hostile one is cheap to read and has a bounded cost per message.
"""

from __future__ import annotations

from rocketpost.filter.expression import Expression, check_filter, compile_filter

__all__ = ["Expression", "check_filter", "compile_filter"]
