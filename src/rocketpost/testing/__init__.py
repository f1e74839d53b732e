"""Real servers for tests: processes on free ports, and their faults."""
