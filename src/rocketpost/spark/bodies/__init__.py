"""Formats of message bodies: conversion between bytes and columns by a schema (``bodyFormat``).

``codec`` is the interface of formats; ``json``, ``avro`` and ``protobuf`` are the formats.
``shape`` puts decoded bodies into the rows of a source, and ``sink_bodies`` makes bodies from the
columns of a sink.
"""
