"""Files that are made to cost: what they can make the reader do and hold is bounded, whatever they claim."""

from __future__ import annotations

import itertools
import random
import struct
import tracemalloc
from typing import Any

import numpy as np
import pytest

from omni.audio import boxes, decode, memory, mpeg
from omni.audio.walks import Damaged
from omni.errors import BadRequest

FRAME = struct.pack(">I", 0xFFF31400) + bytes(20)  # the shortest one: MPEG 2, layer 3, 8 kbit/s at 24 kHz
TAG = b"ID3\4\0\0\0\0\0\0"
CLAIMS = struct.pack(">II", 0, 0xFFFFFFFF)


def box(tag: bytes, *content: bytes) -> bytes:
    body = b"".join(content)
    return struct.pack(">I4s", 8 + len(body), tag) + body


FTYP = box(b"ftyp", b"M4A ", bytes(4))
SIZES = box(b"stsz", struct.pack(">4xII", 1, 60_000_000))
HANDLER = box(b"hdlr", bytes(8), b"soun", bytes(12))


def refused(data: bytes) -> str:
    with pytest.raises(BadRequest) as caught:
        decode(data, 16000)
    assert caught.value.param == "file"
    return caught.value.message


@pytest.fixture
def visits(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The names of the boxes that were looked at."""
    seen: list[bytes] = []
    visit = boxes._Header.visit

    def watched(self: Any, tag: bytes, *rest: int) -> None:
        seen.append(tag)
        visit(self, tag, *rest)

    monkeypatch.setattr(boxes._Header, "visit", watched)
    return seen


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Every look at the processor's clock takes a second; the list holds how many there were."""
    looks = itertools.count()
    seen: list[int] = []

    def thread_time() -> int:
        seen.append(next(looks))
        return seen[-1]

    monkeypatch.setattr(memory.time, "thread_time", thread_time)
    return seen


@pytest.mark.parametrize("sound", [(b"stsz" + bytes(4)) * 2 + CLAIMS, b"st" * 8, b"trun\0\0\0\0"])
def test_samples_are_never_searched_for_tables(sound, visits):
    refused(FTYP + box(b"mdat", sound * 50_000))
    assert visits[-1] == b"mdat"
    assert len(visits) <= 3


def test_tables_do_not_overlap(visits):
    table = b"stsz" + bytes(4)
    message = refused(FTYP + box(b"moov", box(b"stsz", bytes(4), CLAIMS, (table * 2 + CLAIMS) * 50_000)))
    assert "claims 4294967295 entries" in message
    assert visits[-1] == b"stsz"
    assert len(visits) <= 4


@pytest.mark.parametrize(
    "data",
    [
        FTYP + box(b"free") * 100_000,
        FTYP + box(b"moov", box(b"udta") * 100_000),
        FTYP + box(b"moov", box(b"trak", SIZES[:-4] + bytes(4)) + (SIZES[:-4] + bytes(4)) * 50_000),
        FTYP + box(b"moof", box(b"trun", bytes(8)) * 50_000),
        FRAME * 2 + (TAG * 100 + FRAME) * 2000,
        FRAME * 100_000,
        b"\x1a\x45\xdf\xa3\x80" + b"\xec\x80" * 200_000,
    ],
    ids=["free", "udta", "stsz", "trun", "tags", "frames", "matroska"],
)
def test_every_walk_ends_with_its_budget(data, clock):
    assert "next to no audio" in refused(data)
    assert clock[-1] <= memory._STEP_SECONDS + 3


def test_boxes_are_not_followed_deeper_than_ffmpeg_goes(visits):
    nested = SIZES
    for _ in range(2000):
        nested = box(b"udta", nested)
    refused(FTYP + box(b"moov", nested))
    assert len(visits) <= 12


def test_many_tracks():
    assert "more than 32 tracks" in refused(FTYP + box(b"moov", box(b"trak") * 33))


@pytest.mark.parametrize(
    "header",
    [
        box(b"stbl", SIZES),
        box(b"moov", box(b"trak", HANDLER, box(b"udta", SIZES))),
        box(b"moov", box(b"trak", box(b"wave", SIZES))),
        box(b"moov", box(b"meta", bytes(4), HANDLER, SIZES)),
        box(b"moov", box(b"meta", bytes(8), HANDLER, SIZES)),
        box(b"moov", box(b"meta", HANDLER, SIZES)),
        box(b"free", box(b"mvhd"), SIZES),
        box(b"moov", struct.pack(">I4s", 0, b"trak"), SIZES),
        box(b"moov", struct.pack(">I4s", 1 << 31, b"trak"), SIZES),
        box(b"moov", struct.pack(">I4sQ", 1, b"trak", 16 + len(SIZES)), SIZES),
        box(b"moof", box(b"traf", box(b"trun", struct.pack(">II", 1, 60_000_000), bytes(4)))),
        box(b"moov", box(b"trak", box(b"stsd", bytes(8), box(b"mp4a", bytes(28), SIZES)))),
        box(b"moov", box(b"cmov", bytes(100))),
        box(b"meta", bytes(4), HANDLER, box(b"iloc", b"\2\0\0\0\x44\0", struct.pack(">I", 60_000_000))),
        box(b"moov", box(b"stz2", struct.pack(">4xII", 4, 60_000_000))),
        box(b"moov", box(b"stsz", bytes(4))),
    ],
)
def test_claims_are_found_wherever_ffmpeg_reads_them(header):
    with pytest.raises(Damaged, match=r"room for|table|compressed"):
        boxes.check(memoryview(FTYP + header + bytes(8)).cast("B")[:-8], memory.Budget())


def test_pcm_is_held_to_its_chunks(files):
    """FFmpeg indexes it in pieces of 1024 samples, so that the number of samples alone would be no measure."""
    file = bytearray(files["mov-pcm"])
    at = file.index(b"stsc") + 8
    assert struct.unpack_from(">II", file, at)[0] >= 1
    struct.pack_into(">I", file, at + 8, 0x7FFFFFFF)
    assert "room for" in refused(bytes(file))


def test_tags_in_a_row():
    many = memoryview(TAG * 10_000)
    assert mpeg.skip_tags(many, 0) == 64 * len(TAG)
    tail = memoryview((b"TAG" + bytes(125)) * 10_000)
    assert mpeg.tags_start(tail) == len(tail) - 64 * 128
    assert "not recognised" in refused(bytes(many) + FRAME * 10)
    assert len(decode(TAG * 60 + FRAME * 10, 24000)) == 5760


def _peak(work: Any) -> int:
    """The most bytes that ``work`` held at a time."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_frames_between_tags_are_not_copied():
    frames = (struct.pack(">I", 0xFFFB9000) + bytes(413)) * 2
    file = memoryview((frames + TAG) * 20_000)
    found: list[memory.View] = []
    peak = _peak(lambda: found.append(mpeg.without_tags(file, mpeg.mp3_frame, memory.Budget())))
    assert len(found[0]) == 20_000 * len(frames)
    assert peak < len(file) / 4


def test_too_many_pieces():
    assert "joined from more than" in refused((FRAME + TAG) * ((1 << 16) + 2))


def test_pieces_read_as_one():
    chance = random.Random(0)
    data = chance.randbytes(5000)
    cuts = sorted(chance.sample(range(5000), 40))
    pieces = list(zip(cuts[::2], cuts[1::2], strict=True))
    whole = b"".join(data[start:end] for start, end in pieces)
    joined = memory.Joined(memoryview(data), pieces)
    assert len(joined) == len(whole)
    for _ in range(500):
        start, end = chance.randrange(5000), chance.randrange(5000)
        assert joined[start:end] == whole[start:end]


def test_what_follows_the_samples_of_a_wav_is_not_copied(make_wav):
    file = np.frombuffer(make_wav(bytes(2000)) + bytes(20_000_000), np.uint8)
    assert _peak(lambda: decode(file, 16000)) < 2_000_000
    file = np.concatenate([file, np.ones(1, np.uint8)])
    assert _peak(lambda: refused(file)) < 2_000_000
