"""Text form of hosts, as people and tools write them. Pure."""

from __future__ import annotations


def host_text(host: tuple[str, int]) -> str:
    """Return an IP address and a port as text, an IPv6 address in brackets."""
    ip, port = host
    return f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}"
