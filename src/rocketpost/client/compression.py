"""Compression of message bodies.

Bit 0 of the sysFlag says that a body is compressed, bits 8 to 10 how: 0 and 3 zlib, 1 LZ4 frames,
2 zstd.
"""

from __future__ import annotations

import zlib

import lz4.frame
import zstandard

from rocketpost.client.config import Compression
from rocketpost.errors import RemoteProtocolError
from rocketpost.model.sysflag import (
    COMPRESSED,
    COMPRESSION_LZ4,
    COMPRESSION_MASK,
    COMPRESSION_ZLIB,
    COMPRESSION_ZSTD,
)

BODY_BYTES_MAX = 512 * 1024 * 1024
"""Maximum size of a decompressed body; a larger one is an attack."""

_BITS = {
    Compression.ZLIB: COMPRESSION_ZLIB,
    Compression.LZ4: COMPRESSION_LZ4,
    Compression.ZSTD: COMPRESSION_ZSTD,
}


def compress(body: bytes, kind: Compression, level: int) -> tuple[bytes, int]:
    """Return the compressed body, and its bits of the sysFlag."""
    if kind is Compression.ZLIB:
        small = zlib.compress(body, level)
    elif kind is Compression.LZ4:
        # Java's library reads only frames of independent blocks, and ignores others silently.
        small = lz4.frame.compress(body, block_linked=False)
    else:
        small = zstandard.ZstdCompressor(level=level).compress(body)
    return small, COMPRESSED | _BITS[kind]


def decompress(body: bytes, sys_flag: int, bytes_max: int = BODY_BYTES_MAX) -> bytes:
    """Return the decompressed body; a body that is not compressed is returned unchanged.

    Args:
        body: The body.
        sys_flag: The sysFlag of the message.
        bytes_max: Maximum size of the decompressed body.

    Raises:
        RemoteProtocolError: The body does not match its flag, or is too large.
    """
    if not sys_flag & COMPRESSED:
        return body
    kind = sys_flag & COMPRESSION_MASK
    try:
        if kind in (0, COMPRESSION_ZLIB):
            return _inflate(body, bytes_max)
        if kind == COMPRESSION_LZ4:
            return _unpack_lz4(body, bytes_max)
        if kind == COMPRESSION_ZSTD:
            return _unpack_zstd(body, bytes_max)
    except (zlib.error, RuntimeError, EOFError, zstandard.ZstdError) as error:
        raise RemoteProtocolError(f"a compressed body cannot be read: {error}") from None
    raise RemoteProtocolError(f"a body is compressed in an unknown way: {kind:#x}")


def _inflate(body: bytes, bytes_max: int) -> bytes:
    inflater = zlib.decompressobj()
    plain = inflater.decompress(body, bytes_max)
    if inflater.unconsumed_tail:
        raise RuntimeError(f"it is larger than {bytes_max} bytes when decompressed")
    if not inflater.eof:
        raise RuntimeError("it is cut short")
    return plain


def _unpack_lz4(body: bytes, bytes_max: int) -> bytes:
    unpacker = lz4.frame.LZ4FrameDecompressor()
    plain: bytes = unpacker.decompress(body, max_length=bytes_max)
    if not unpacker.eof:
        raise RuntimeError("it is cut short or too large")
    return plain


def _unpack_zstd(body: bytes, bytes_max: int) -> bytes:
    size = zstandard.frame_content_size(body)  # -1 if unknown
    if size < 0:
        with zstandard.ZstdDecompressor().stream_reader(body) as reader:
            size = len(reader.read(bytes_max + 1))
    if size > bytes_max:
        raise RuntimeError(f"it is larger than {bytes_max} bytes when decompressed")
    unpacker = zstandard.ZstdDecompressor().decompressobj()
    plain = unpacker.decompress(body)
    if not unpacker.eof:
        raise RuntimeError("it is cut short")
    return plain
