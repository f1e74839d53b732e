"""How Spark finds ``format("rocketmq-log")``: it imports every top-level ``pyspark_*`` module."""

from rocketpost.spark.source.formats import RocketMQLogSource as DefaultSource

__all__ = ["DefaultSource"]
