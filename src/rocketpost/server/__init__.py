"""Server processes: the only package that reads configuration, binds ports and wires parts."""
