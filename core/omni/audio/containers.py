"""Which container a file is, by its first bytes only, and what its structure says before it is decoded.

FFmpeg resynchronises in silence where a file is damaged. The walks of :mod:`omni.audio.walks` follow the
structure of each container instead, so that a hole or a cut is an error and never a shorter success.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from omni.audio import boxes, mpeg, walks
from omni.audio.memory import Budget, View
from omni.audio.walks import Damaged

# A size field of zero or at least this much, with less behind it, comes from a recorder that did not know
# the length yet: ffmpeg writes 0xFFFFFFFF, arecord 0x80000000, wave and others 0x7FFFFFFF, SoX 0x7FFFF000.
_OPEN_SIZE = 0x7FFFF000
_MAX_CHUNKS = 1000

# PCM, MS ADPCM, float, A-law, mu-law, IMA ADPCM, extensible: only whole blocks of these can be decoded.
_BLOCK_FORMATS = {1, 2, 3, 6, 7, 0x11, 0xFFFE}


@dataclass(frozen=True)
class Container:
    """``demuxer`` is FFmpeg's name. ``prepare`` gives the part of the file to decode and the number of
    samples its header promises (None: unsaid); ``walk`` follows that part and gives the offsets up to which
    it is whole. Both raise :class:`Damaged`. ``numbered`` says that packets carry their exact sample number,
    so that a hole shows there.
    """

    name: str
    demuxer: str
    walk: Callable[[Any], Iterator[int]]
    prepare: Callable[[memoryview, Budget], tuple[View, int | None]]
    numbered: bool = False


def recognise(view: memoryview) -> Container | None:
    """What ``view`` is, None when it is nothing that is accepted."""
    head = bytes(view[:16])
    if head[:4] in (b"RIFF", b"RF64", b"BW64") and head[8:12] == b"WAVE":
        return _WAV
    if head[:4] == b"OggS":
        return _OGG
    if head[:4] == b"\x1a\x45\xdf\xa3":
        return _WEBM
    if head[4:8] in _BOXES:
        return _MP4
    start = mpeg.skip_tags(view, 0)
    if bytes(view[start : start + 4]) == b"fLaC":
        return _FLAC
    for container, frame in ((_AAC, mpeg.adts_frame), (_MP3, mpeg.mp3_frame)):
        size = frame(view, start)
        second = start + size
        # The few bits of one header are easily there by chance: another one, a tag or the end must follow.
        if size and (second >= len(view) or frame(view, second) or mpeg.skip_tags(view, second) > second):
            return container
    return None


def _wav(view: memoryview, _: Budget) -> tuple[memoryview, None]:
    """``view`` up to the last whole block of samples. What follows them is not needed, but has to be chunks."""
    position, align, long_size = 12, 0, None
    for _chunk in range(_MAX_CHUNKS):
        if position + 8 > len(view):
            break
        tag, size = struct.unpack_from("<4sI", view, position)
        position += 8
        if tag == b"data":
            if not align:
                raise Damaged("its samples come before their description (the fmt chunk)")
            size = size if long_size is None else long_size
            return _wav_samples(view, position, size, align), None
        if position + size > len(view):
            raise Damaged(f"its {tag!r} chunk is cut off")
        if tag == b"ds64" and size >= 16:
            (long_size,) = struct.unpack_from("<Q", view, position + 8)
        elif tag == b"fmt " and size >= 14:
            code, block = struct.unpack_from("<H10xH", view, position)
            align = max(1, block) if code in _BLOCK_FORMATS else 1
        position += size + size % 2
    raise Damaged("it ends before its samples (there is no data chunk)")


def _wav_samples(view: memoryview, start: int, size: int, align: int) -> memoryview:
    present = len(view) - start
    (riff,) = struct.unpack_from("<I", view, 4)
    is_open = size >= _OPEN_SIZE if size else riff + 8 != len(view)
    if size > present and not is_open:
        raise Damaged(f"its header promises {size} bytes of samples, {present} are there")
    if is_open:
        size = min(present, size or present)
    _refuse_samples_after(view, start + size)
    return view[: start + size - size % align]


def _refuse_samples_after(view: memoryview, position: int) -> None:
    """A header that promises too little: what follows the samples is neither chunks nor padding.

    Chunks are followed by their printable tags; the last one may be cut off (an ID3v1 tag looks like that).
    """
    if position % 2 and bytes(view[position : position + 1]) == b"\0":
        position += 1
    for _ in range(_MAX_CHUNKS):
        if position + 8 > len(view):
            return
        tag, size = struct.unpack_from("<4sI", view, position)
        if not (tag.isascii() and tag.decode("ascii").isprintable()):
            break
        position += 8 + size + size % 2
    rest = max(0, len(view) - position)
    if mpeg.zeros(view, position) < rest:
        raise Damaged(f"its header promises fewer samples than there are: {rest} bytes after them are no chunk")


def _flac(view: memoryview, _: Budget) -> tuple[memoryview, int | None]:
    """Without tags around it; the 36-bit length in STREAMINFO (RFC 9639, section 8.2), zero when unknown."""
    view = view[mpeg.skip_tags(view, 0) : mpeg.tags_start(view)]
    if len(view) < 42:
        raise Damaged("it ends in its header")
    return view, (int.from_bytes(view[21:26], "big") & (1 << 36) - 1) or None


def _mp4(view: memoryview, budget: Budget) -> tuple[memoryview, None]:
    boxes.check(view, budget)
    return view, None


def _mp3(view: memoryview, budget: Budget) -> tuple[View, None]:
    return mpeg.without_tags(view, mpeg.mp3_frame, budget), None


def _aac(view: memoryview, budget: Budget) -> tuple[View, None]:
    return mpeg.without_tags(view, mpeg.adts_frame, budget), None


def _as_it_is(view: memoryview, _: Budget) -> tuple[memoryview, None]:
    return view, None


_WAV = Container("wav", "wav", walks.whole, _wav)
_FLAC = Container("flac", "flac", walks.whole, _flac, numbered=True)
_MP3 = Container("mp3", "mp3", mpeg.mp3, _mp3)
_AAC = Container("aac", "aac", mpeg.adts, _aac)
_OGG = Container("ogg", "ogg", walks.ogg, _as_it_is)
_MP4 = Container("mp4", "mov", walks.whole, _mp4)
_WEBM = Container("webm", "matroska", walks.matroska, _as_it_is)

ACCEPTED = "wav, mp3, m4a/mp4/mov, ogg (Opus, Vorbis, FLAC), flac, webm/mkv (Opus, Vorbis) and aac (ADTS)"

_BOXES = {b"ftyp", b"moov", b"mdat", b"wide", b"free", b"skip", b"styp"}
