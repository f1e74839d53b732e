"""Rocketpost: RocketMQ in Python, compatible on the wire and on disk."""

from typing import Final

VERSION: Final = "0.1.0"
