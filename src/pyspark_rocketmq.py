"""How Spark finds ``format("rocketmq")``: it imports every top-level ``pyspark_*`` module.

If one of them fails to import Spark skips them all, so this one imports little.
"""

from rocketpost.spark.source.formats import RocketMQSource as DefaultSource

__all__ = ["DefaultSource"]
