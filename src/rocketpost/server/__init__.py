"""Processes: the only place that reads configuration, binds ports and wires parts."""
