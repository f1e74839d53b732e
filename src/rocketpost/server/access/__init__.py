"""Access control of a server: the gate that every request passes, users and rules by request."""
