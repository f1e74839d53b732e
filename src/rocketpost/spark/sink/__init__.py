"""The sink: sends rows of Spark as messages."""
