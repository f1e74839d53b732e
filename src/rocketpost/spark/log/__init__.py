"""The source ``format("rocketmq-log")``: store directories as tables."""
