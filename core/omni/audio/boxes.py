"""The boxes of an MP4 or QuickTime file (ISO 14496-12): its header is read, its samples are stepped over.

FFmpeg allocates an index entry for each sample that a header claims. It reads a table wherever it meets one, and
shortens a box that does not fit into its parent. The walk here does the same, so that it sees every table that
FFmpeg could read, and holds it to what the file has room for before FFmpeg opens it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from omni.audio.memory import Budget
from omni.audio.walks import Damaged, cut

_MAX_DEPTH = 10  # FFmpeg refuses what lies deeper
_MAX_SAMPLES = 1 << 24  # an index of 400 MB; four hours of AAC are 1.4 million
_MAX_TRACKS = 32
_MAX_DESCRIPTIONS = 1 << 20
_META_HEAD = 1 << 16
_NO_PARENTS = (b"mdat", b"skip")
_KINDS = {b"soun", b"vide", b"subp", b"clcp"}
_ROWS = 1 << 16


def check(view: memoryview, budget: Budget) -> None:
    """Follows the whole file.

    Raises:
        Damaged: a box or a table is cut off, or the header claims samples that are not there.
    """
    header, position, payload = _Header(view, budget), 0, 0
    while position < len(view):
        tag, start, end = _box(view, position, len(view))
        if end > len(view):
            raise cut(f"the {tag.decode('ascii', 'replace')!r} box", position)
        payload += end - start if tag == b"mdat" else 0
        header.visit(tag, start, end, 1)
        budget.check()
        position = end
    samples, limit = header.samples(), min(max(len(view) // 2, 64), _MAX_SAMPLES)
    if samples > limit:
        raise Damaged(f"it claims {samples} samples, more than it has room for (up to {limit} are accepted)")
    if header.sample_bytes > payload:
        raise Damaged(f"its index lists {header.sample_bytes} bytes of samples, {payload} are there")


def _box(view: memoryview, position: int, end: int) -> tuple[bytes, int, int]:
    """Name, start and end of the content of the box at ``position`` in a parent that ends at ``end``."""
    if position + 8 > end:
        raise cut("a box", position)
    size, tag = struct.unpack_from(">I4s", view, position)
    start = position + 8
    if size == 1 and start + 8 <= end:
        (size,) = struct.unpack_from(">Q", view, start)
        start += 8
    elif size == 0:
        size = end - position
    if position + size < start:
        raise Damaged(f"there is no box at byte {position}")
    return tag, start, position + size


@dataclass
class _Track:
    """What the tables of one track claim: ``samples``, and how they lie in chunks.

    FFmpeg indexes PCM (sound of which every sample lasts one tick) by pieces of chunks instead of samples.
    """

    samples: int = 0
    handlers: set[bytes] = field(default_factory=set)
    one_tick: bool = False
    chunks: int = 0
    to_chunk: tuple[int, int] | None = None

    def entries(self, view: memoryview, budget: Budget) -> int:
        if self.handlers != {b"soun"} or not self.one_tick or self.to_chunk is None:
            return self.samples
        (start, end), count = self.to_chunk, 0.0
        for at in range(start, end, 12 * _ROWS):
            budget.check()
            # One row more than are counted: a row holds until the next one's first chunk.
            rows = np.frombuffer(view[at : min(end, at + 12 * _ROWS + 12)], ">u4").reshape(-1, 3).astype(np.float64)
            firsts = rows[:, 0] if at + 12 * _ROWS < end else np.append(rows[:, 0], self.chunks + 1.0)
            repeats = np.maximum(np.diff(firsts), 0)
            count += float((repeats * np.ceil(rows[: len(repeats), 1] / 1024)).sum())
        return int(count)


class _Header:
    """Visits boxes and collects what their tables claim."""

    def __init__(self, view: memoryview, budget: Budget) -> None:
        self._view, self._budget = view, budget
        self._tracks = [_Track()]
        self._in_runs = 0
        self.sample_bytes = 0
        self._leaves: dict[bytes, Callable[[int, int], None]] = {
            b"stsz": self._sample_sizes,
            b"stz2": self._compact_sizes,
            b"trun": self._run,
            b"stts": self._durations,
            b"stsc": self._samples_to_chunks,
            b"stco": self._chunk_offsets,
            b"co64": self._chunk_offsets,
            b"hdlr": self._handler,
            b"stsd": self._descriptions,
            b"cmov": self._compressed,
            b"iloc": lambda start, end: self._items(start, end, 6, 2),
            b"iinf": lambda start, end: self._items(start, end, 4, 1),
        }

    def samples(self) -> int:
        return self._in_runs + sum(track.entries(self._view, self._budget) for track in self._tracks)

    def visit(self, tag: bytes, start: int, end: int, depth: int) -> None:
        """The box whose content lies from ``start`` to ``end``, and those in it."""
        leaf = self._leaves.get(tag)
        if leaf is not None:
            leaf(start, end)
        if leaf is not None or depth >= _MAX_DEPTH or not tag.isalnum() or tag in _NO_PARENTS:
            return
        # FFmpeg takes a free box that begins so for a moov that somebody has hidden.
        if tag == b"free" and bytes(self._view[start + 4 : start + 8]) not in (b"mvhd", b"cmov"):
            return
        if tag == b"trak":
            if len(self._tracks) > _MAX_TRACKS:
                raise Damaged(f"it has more than {_MAX_TRACKS} tracks")
            self._tracks.append(_Track())
        position = self._handler_of_meta(start, end) if tag == b"meta" else start
        while position + 8 <= end:
            self._budget.check()
            try:
                child, first, last = _box(self._view, position, end)
            except Damaged:
                return  # no parent of boxes, or one that FFmpeg leaves here too
            position = min(last, end)
            self.visit(child, first, position, depth + 1)

    def _handler_of_meta(self, start: int, end: int) -> int:
        """Where the boxes begin: QuickTime's meta has no version before them, and FFmpeg looks for the handler."""
        head = bytes(self._view[start : min(end, start + _META_HEAD)])
        for at in range(0, len(head) - 7, 4):
            if head[at + 4 : at + 8] == b"hdlr":
                return start + at
        if end - start > _META_HEAD:
            raise Damaged(f"its meta box has no handler in its first {_META_HEAD} bytes")
        return end

    def _fields(self, layout: str, start: int, end: int) -> tuple[int, ...]:
        if start + struct.calcsize(layout) > end:
            raise cut("a table", start - 8)
        return struct.unpack_from(layout, self._view, start)

    @staticmethod
    def _end_of(count: int, bits: int, start: int, end: int) -> int:
        """Where a table of ``count`` entries ends that begins at ``start`` in a box that ends at ``end``."""
        size = (count * bits + 7) // 8
        if size > end - start:
            raise Damaged(f"the table at byte {start} claims {count} entries, more than it has room for")
        return start + size

    def _sample_sizes(self, start: int, end: int) -> None:
        size, count = self._fields(">4xII", start, end)
        self._tracks[-1].samples += count
        if size:
            self.sample_bytes += size * count
        else:
            table = self._view[start + 12 : self._end_of(count, 32, start + 12, end)]
            self.sample_bytes += int(np.frombuffer(table, ">u4").sum(dtype=np.int64))

    def _compact_sizes(self, start: int, end: int) -> None:
        bits, count = self._fields(">7xBI", start, end)
        # A field of no bits would let any number of samples fit.
        self._end_of(count, max(bits, 4), start + 12, end)
        self._tracks[-1].samples += count

    def _run(self, start: int, end: int) -> None:
        flags, count = self._fields(">II", start, end)
        each, before = (flags >> 8 & 15).bit_count(), (flags & 1) + (flags >> 2 & 1)
        self._end_of(count, 32 * each, start + 8 + 4 * before, end)
        self._in_runs += count

    def _durations(self, start: int, end: int) -> None:
        (count,) = self._fields(">4xI", start, end)
        self._tracks[-1].one_tick = count == 1 and self._fields(">12xI", start, end) == (1,)

    def _samples_to_chunks(self, start: int, end: int) -> None:
        (count,) = self._fields(">4xI", start, end)
        self._tracks[-1].to_chunk = start + 8, self._end_of(count, 96, start + 8, end)

    def _chunk_offsets(self, start: int, end: int) -> None:
        (count,) = self._fields(">4xI", start, end)
        self._end_of(count, 32, start + 8, end)
        self._tracks[-1].chunks = count

    def _handler(self, start: int, end: int) -> None:
        kind = bytes(self._view[start + 8 : min(end, start + 12)])
        self._tracks[-1].handlers |= {kind} & _KINDS

    def _descriptions(self, start: int, end: int) -> None:
        """They hold boxes behind fields that depend on the codec; none of these is a table."""
        if end - start > _MAX_DESCRIPTIONS:
            raise Damaged(f"its sample descriptions take {end - start} bytes; up to {_MAX_DESCRIPTIONS} are accepted")
        content = bytes(self._view[start:end])
        if any(tag in content for tag in (b"stsz", b"stz2", b"trun", b"stsc", b"cmov")):
            raise Damaged("its sample descriptions hold a table of samples")

    def _compressed(self, start: int, end: int) -> None:
        raise Damaged("its header is compressed (cmov), which is not accepted")

    def _items(self, start: int, end: int, at: int, wide_from: int) -> None:
        """Pictures; their number has 32 bits from some version on."""
        (version,) = self._fields(">B", start, end)
        (count,) = self._fields(">I" if version >= wide_from else ">H", start + at, end)
        self._end_of(count, 16, start + at, end)
