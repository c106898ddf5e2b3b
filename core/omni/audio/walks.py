"""Follows the structure of Ogg and Matroska and says where it is broken or cut off.

Every walk is a generator over a read-only view of the file: it gives growing offsets up to which the file
is whole, in steps of one page or block, so that checking keeps pace with decoding. It ends at the end
of the file or raises :class:`Damaged`.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator

_MAX_OGG_STREAMS = 64
# Ogg's CRC runs from the high bit down, zlib's from the low bit up: they agree on reversed bits.
_REVERSED = bytes(int(f"{byte:08b}"[::-1], 2) for byte in range(256))

_SEGMENT, _CLUSTER = 0x18538067, 0x1F43B675
_BLOCKS = (0xA3, 0xA0)  # SimpleBlock, BlockGroup


class Damaged(Exception):
    """The file is not what its own structure promises; the message completes "the file is damaged: "."""


def cut(what: str, at: int) -> Damaged:
    return Damaged(f"it is cut off in the middle of {what} that starts at byte {at}")


def whole(view: memoryview) -> Iterator[int]:
    """Nothing to follow: the header and the packets themselves are checked."""
    yield len(view)


def _ogg_crc(page: bytes) -> int:
    """CRC-32 with polynomial 0x04C11DB7, start 0, no final inversion (RFC 3533, section 6)."""
    crc = zlib.crc32(page.translate(_REVERSED), 0xFFFFFFFF) ^ 0xFFFFFFFF
    return int(f"{crc:032b}"[::-1], 2)


def ogg(view: memoryview) -> Iterator[int]:
    """Pages (RFC 3533): pattern, checksum, and no missing page number in any logical stream."""
    position, end = 0, len(view)
    following: dict[int, int] = {}
    while position < end:
        if position + 27 > end:
            raise cut("a page", position)
        pattern, flags, serial, number, crc, segments = struct.unpack_from("<4sxB8xIIIB", view, position)
        if pattern != b"OggS":
            raise Damaged(f"there is no Ogg page at byte {position}")
        size = 27 + segments + sum(view[position + 27 : position + 27 + segments])
        if position + size > end:
            raise cut("a page", position)
        page = bytearray(view[position : position + size])
        page[22:26] = bytes(4)
        if _ogg_crc(bytes(page)) != crc:
            raise Damaged(f"the checksum of the Ogg page at byte {position} is wrong")
        first_of_stream = flags & 2
        if not first_of_stream and following.get(serial) != number:
            raise Damaged(f"an Ogg page is missing before byte {position}")
        following[serial] = (number + 1) & 0xFFFFFFFF
        if len(following) > _MAX_OGG_STREAMS:
            raise Damaged(f"it has more than {_MAX_OGG_STREAMS} logical streams")
        position += size
        yield position


def _vint(view: memoryview, position: int, keep_marker: bool) -> tuple[int, int]:
    """``(value, length)`` of EBML's variable-length integer (RFC 8794, section 4); -1 when all ones."""
    if position >= len(view):
        raise cut("an element", position)
    first = view[position]
    length = 9 - first.bit_length()
    if length > (4 if keep_marker else 8):
        raise Damaged(f"there is no Matroska element at byte {position}")
    if position + length > len(view):
        raise cut("an element", position)
    value = int.from_bytes(view[position : position + length], "big")
    if keep_marker:
        return value, length
    mask = (1 << 7 * length) - 1
    return (-1 if value & mask == mask else value & mask), length


def matroska(view: memoryview) -> Iterator[int]:
    """Elements (RFC 9559) down to the blocks: every one fits, and blocks lie in clusters.

    Recorders write segments and clusters of unknown size; everything else states its size.
    """
    position, end, segment_end, cluster_end = 0, len(view), None, None
    in_cluster = False
    while position < end:
        start = position
        element, length = _vint(view, position, keep_marker=True)
        position += length
        size, length = _vint(view, position, keep_marker=False)
        position += length
        if cluster_end is not None and start >= cluster_end:
            if start > cluster_end:
                raise Damaged(f"the cluster before byte {start} does not end where it says")
            in_cluster, cluster_end = False, None
        if element == _CLUSTER:
            in_cluster, cluster_end = True, position + size if size >= 0 else None
        elif element == _SEGMENT:
            segment_end = position + size if size >= 0 else None
        elif size < 0 or (element in _BLOCKS and not in_cluster):
            raise Damaged(f"there is no Matroska element at byte {start}")
        else:
            position += size
        if max(position, cluster_end or 0, segment_end or 0) > end:
            raise cut("an element", start)
        yield position
