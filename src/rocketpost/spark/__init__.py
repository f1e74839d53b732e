"""Topics and logs as Spark tables and streams: ``format("rocketmq")``, ``format("rocketmq-log")``.

Spark finds the formats by itself if the package is installed for its Python; otherwise
:func:`register` adds them to a session.
"""

from __future__ import annotations

from rocketpost.spark.source.formats import RocketMQLogSource, RocketMQSource, register

__all__ = ["RocketMQLogSource", "RocketMQSource", "register"]
