"""Store directories as Spark tables."""
