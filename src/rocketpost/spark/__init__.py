"""Topics and logs as Spark tables and streams: ``format("rocketmq")``, ``format("rocketmq-log")``.

Spark finds the format by itself where the package is installed for its Python; elsewhere
:func:`register` makes it known to a session.
"""

from __future__ import annotations

from rocketpost.spark.source.formats import RocketMQLogSource, RocketMQSource, register
from rocketpost.spark.workers.end import end_quietly

__all__ = ["RocketMQLogSource", "RocketMQSource", "register"]

end_quietly()
