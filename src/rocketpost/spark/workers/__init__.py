"""Python workers of Spark: their daemon, sockets, heap and shutdown."""
