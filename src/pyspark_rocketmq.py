"""Entry point for ``format("rocketmq")``: Spark imports all ``pyspark_*`` modules.

If one of them fails to import, Spark skips them all, so this one imports little. A worker of Spark
that looks for formats only imports this module, so the worker is prepared here.
"""

from rocketpost.spark.source.formats import RocketMQSource as DefaultSource
from rocketpost.spark.workers.preparation import prepare_worker

__all__ = ["DefaultSource"]

prepare_worker()
