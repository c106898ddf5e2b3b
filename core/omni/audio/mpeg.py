"""MPEG audio and ADTS: frames that follow each other without a gap, and the tags around them."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from functools import lru_cache

from omni.audio.memory import Budget, Joined, View
from omni.audio.walks import Damaged, cut

_MAX_TAGS = 64  # at one place
_MAX_PIECES = 1 << 16  # four hours of a broadcast with a tag every quarter of a second

# kbit/s by (is MPEG 1, layer) and index 1 to 14; index 0 is "free format", which nothing real uses.
_BIT_RATES = {
    (True, 1): (32, 64, 96, 128, 160, 192, 224, 256, 288, 320, 352, 384, 416, 448),
    (True, 2): (32, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384),
    (True, 3): (32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320),
    (False, 1): (32, 48, 56, 64, 80, 96, 112, 128, 144, 160, 176, 192, 224, 256),
    (False, 2): (8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
    (False, 3): (8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
}
_RATES = (44100, 48000, 32000)
_HALVINGS = {3: 0, 2: 1, 0: 2}  # by version bits: MPEG 1, 2, 2.5


@lru_cache(maxsize=4096)
def _frame_size(header: int) -> int:
    """Bytes of the frame whose header starts with these 23 bits (ISO 11172-3, 2.4.1.3), 0: no header."""
    version, layer = header >> 10 & 3, 4 - (header >> 8 & 3)
    index, rate_index, padding = header >> 3 & 15, header >> 1 & 3, header & 1
    if header >> 12 != 0x7FF or version == 1 or layer == 4 or index in (0, 15) or rate_index == 3:
        return 0
    bit_rate = _BIT_RATES[version == 3, layer][index - 1] * 1000
    rate = _RATES[rate_index] >> _HALVINGS[version]
    if layer == 1:
        return (12 * bit_rate // rate + padding) * 4
    samples = 576 if layer == 3 and version != 3 else 1152
    return samples // 8 * bit_rate // rate + padding


def mp3_frame(view: View, position: int) -> int:
    """Size in bytes of the MPEG audio frame at ``position``, 0 when there is none."""
    return _frame_size(int.from_bytes(view[position : position + 3], "big") >> 1)


def adts_frame(view: View, position: int) -> int:
    """Size in bytes of the ADTS frame (ISO 13818-7, 6.2) at ``position``, 0 when there is none."""
    header = int.from_bytes(view[position : position + 6], "big")
    size = header >> 5 & 0x1FFF
    is_header = header >> 36 == 0xFFF and not header >> 33 & 3 and header >> 18 & 15 < 13
    return size if is_header and size > 7 else 0


def skip_tags(view: memoryview, position: int) -> int:
    """Past ID3 tags (version 2, or version 1 of a file that was joined to another) and their padding.

    Zero bytes are padding after a tag and at the end of the file; anywhere else they are a hole. Not past more
    than 64 in a row, which nothing real has.
    """
    start = position
    for _ in range(_MAX_TAGS):
        head = bytes(view[position : position + 10])
        if head[:3] == b"ID3" and len(head) == 10:
            size = (head[6] & 127) << 21 | (head[7] & 127) << 14 | (head[8] & 127) << 7 | head[9] & 127
            position += 10 + size + (10 if head[5] & 0x10 else 0)
        elif head[:3] == b"TAG":
            position += 128
        elif head[:1] == b"\0":
            end = position + zeros(view, position)
            if position == start and end < len(view):
                return position
            position = end
        else:
            break
    return position


def zeros(view: View, position: int) -> int:
    """How many zero bytes there are from ``position`` on."""
    count = 0
    while block := bytes(view[position + count : position + count + 65536]):
        rest = block.lstrip(b"\0")
        count += len(block) - len(rest)
        if rest:
            break
    return count


def tags_start(view: memoryview) -> int:
    """Where the tags at the end of the file (ID3v1, APE, Lyrics3; up to 64) begin."""
    end = len(view)
    for _ in range(_MAX_TAGS):
        tail = bytes(view[max(0, end - 128) : end])
        if tail[-128:-125] == b"TAG":
            size = 128
        elif tail[-32:-24] == b"APETAGEX":
            length, _, flags = struct.unpack("<III", tail[-20:-8])
            size = length + (32 if flags >> 31 else 0)
        elif tail[-9:] == b"LYRICS200" and tail[-15:-9].isdigit():
            size = int(tail[-15:-9]) + 15
        else:
            break
        if not 0 < size <= end:
            break
        end -= size
    return end


def without_tags(view: memoryview, frame: Callable[[View, int], int], budget: Budget) -> View:
    """``view`` without the tags before, after and (where files were joined) between its frames; never a copy.

    Raises:
        Damaged: it has more pieces than any real file.
    """
    view = view[skip_tags(view, 0) : tags_start(view)]
    pieces: list[tuple[int, int]] = []
    run = position = 0
    while position < len(view):
        budget.check()
        size = frame(view, position)
        after = position + size if size else skip_tags(view, position)
        if after == position:
            break
        if not size:
            pieces += [(run, position)] if position > run else []
            run = after
        position = after
        if len(pieces) > _MAX_PIECES:
            raise Damaged(f"it is joined from more than {_MAX_PIECES} pieces with tags between them")
    return Joined(view, [*pieces, (run, max(run, len(view)))]) if pieces else view[run:]


def promised_frames(view: View, position: int) -> int:
    """The number of frames in the Xing or Info header inside the first frame, 0 without one."""
    header = view[position : position + 4]
    mpeg1, mono = header[1] & 8, header[3] >> 6 == 3
    tag = position + 4 + ((17 if mono else 32) if mpeg1 else (9 if mono else 17))
    if bytes(view[tag : tag + 4]) not in (b"Xing", b"Info") or tag + 12 > len(view):
        return 0
    flags, frames = struct.unpack(">II", view[tag + 4 : tag + 12])
    return int(frames) if flags & 1 else 0


def _frames(view: View, frame: Callable[[View, int], int]) -> Iterator[int]:
    position, end = 0, len(view)
    while position < end:
        size = frame(view, position)
        if position + size > end:
            raise cut("an audio frame", position)
        if not size:
            size = zeros(view, position)
            if position + size < end:
                raise Damaged(f"there is no audio frame at byte {position}")
        position += size
        yield position


def adts(view: View) -> Iterator[int]:
    """ADTS frames without a gap, and zeros at the end."""
    return _frames(view, adts_frame)


def mp3(view: View) -> Iterator[int]:
    """MPEG audio frames without a gap, as many as a Xing header promises, and zeros at the end."""
    promised, count = promised_frames(view, 0), 0
    for position in _frames(view, mp3_frame):
        count += 1
        yield position
    # Some encoders count the frame that holds the header and some do not.
    if count < promised:
        raise Damaged(f"its header promises {promised} frames of audio, {count} are there")
