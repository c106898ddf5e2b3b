"""Files that must be refused: always BadRequest, never another error, a hang, or a shorter result."""

from __future__ import annotations

import os
import random
import struct
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omni.audio import decode, open_audio
from omni.errors import BadRequest

NAMES = [
    *("wav", "wav-adpcm", "mp3", "m4a", "m4a-fast-start", "m4a-fragments", "m4a-alac", "mov-pcm"),
    *("ogg-opus", "ogg-vorbis", "ogg-flac", "flac", "flac-open", "webm", "webm-live", "mkv-flac", "aac"),
]


def refused(data: bytes, **options: object) -> BadRequest:
    with pytest.raises(BadRequest) as caught:
        decode(data, 16000, **options)  # type: ignore[arg-type]
    assert caught.value.param == "file"
    return caught.value


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("part", [0.02, 0.3, 0.5, 0.9, 0.999])
def test_cut_files(name, part, files):
    refused(files[name][: int(len(files[name]) * part)])


@pytest.mark.parametrize("name", NAMES)
def test_a_missing_last_byte(name, files):
    assert "damaged" in refused(files[name][:-1]).message


@pytest.mark.parametrize(
    "name", ["mp3", "m4a", "ogg-opus", "ogg-vorbis", "ogg-flac", "aac", "webm", "flac", "flac-open"]
)
def test_a_piece_missing_in_the_middle(name, files):
    file = files[name]
    for size in (1, 100, 1000):
        middle = len(file) // 2
        refused(file[:middle] + file[middle + size :])


@pytest.mark.parametrize(
    "name", ["mp3", "m4a", "m4a-alac", "ogg-opus", "ogg-flac", "flac", "flac-open", "aac", "mkv-flac"]
)
def test_a_hole_of_zeros_in_the_middle(name, files):
    file = bytearray(files[name])
    middle = len(file) // 2
    file[middle : middle + 600] = bytes(600)
    refused(bytes(file))


def test_a_missing_ogg_page(files):
    file = files["ogg-opus"]
    pages = [at for at in range(len(file)) if file[at : at + 4] == b"OggS"]
    assert len(pages) >= 4
    message = refused(file[: pages[2]] + file[pages[3] :]).message
    assert "page is missing" in message


def test_an_mp3_that_ends_between_frames_but_before_its_header_says(files):
    file = files["mp3"]
    last = file.rindex(b"\xff\xfb")
    error = refused(file[: file.rindex(b"\xff\xfb", 0, last)])
    assert "frames of audio" in error.message


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "empty"),
        (b"\0" * 100_000, "not recognised"),
        (b"hello, this is no audio", "not recognised"),
        (b"PK\3\4" + bytes(100), "not recognised"),
        (b"\x89PNG\r\n\x1a\n" + bytes(100), "not recognised"),
        (b"%PDF-1.7" + bytes(100), "not recognised"),
        (b"RIFF\0\0\0\0AVI LIST", "not recognised"),
        (b"ID3\4\0\0\0\0\0\0", "not recognised"),
        (b"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\n/etc/passwd\n#EXT-X-ENDLIST", "not recognised"),
        (b"ffconcat version 1.0\nfile /etc/passwd\n", "not recognised"),
        (b";FFMETADATA1\ntitle=x\n[CHAPTER]\n", "not recognised"),
        (b"v=0\no=- 0 0 IN IP4 127.0.0.1\nc=IN IP4 127.0.0.1\nm=audio 5004 RTP/AVP 0\n", "not recognised"),
        (b"RIFF\x24\0\0\0WAVE", "damaged"),
        (b"fLaC", "damaged"),
        (b"OggS" + bytes(200), "damaged"),
        (b"\x1a\x45\xdf\xa3" + bytes(200), "damaged"),
        (b"\0\0\0\x18ftypM4A " + bytes(12), "recognised as mp4"),
    ],
)
def test_no_audio(data, why):
    error = refused(data)
    assert why in error.message
    if why == "not recognised":
        assert "wav, mp3, m4a" in error.message
        assert error.code == "unsupported_format"


def test_random_bytes():
    for seed in range(30):
        refused(random.Random(seed).randbytes(20_000))


def test_headers_without_samples(make_wav, make_file):
    assert "no audio samples" in refused(make_wav(b"")).message
    assert "no audio samples" in refused(make_wav(b"", size=0xFFFFFFFF, riff=0xFFFFFFFF)).message
    assert refused(make_file("flac", "flac", np.zeros(0, np.float32), 44100, "s16"))


def test_a_wav_header_that_lies(make_wav):
    error = refused(make_wav(bytes(1000), size=2000))
    assert "promises 2000 bytes" in error.message
    assert "1000 are there" in error.message


def test_a_wav_header_that_promises_too_little(make_wav):
    samples = (1000 * np.sin(np.arange(4000) / 7)).astype("<i2").tobytes()
    error = refused(make_wav(samples, size=4000))
    assert "4000 bytes after them are no chunk" in error.message


@pytest.mark.parametrize(
    "after",
    [
        b"LIST\x04\0\0\0INFO",
        b"LIST\xff\0\0\0cut off",
        b"TAG" + b"a title".ljust(125, b"\0"),
        bytes(1000),
        b"\xff\xff",
    ],
    ids=["chunk", "cut", "id3v1", "padding", "crumb"],
)
def test_what_may_follow_the_samples_of_a_wav(make_wav, after):
    samples = bytes(2000)
    whole = make_wav(samples)
    assert len(decode(np.frombuffer(whole + after, np.uint8), 16000)) == len(
        decode(np.frombuffer(whole, np.uint8), 16000)
    )


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("kind", ["<f4", "<f8"])
def test_samples_that_are_no_numbers(value, kind, make_wav):
    sound = np.zeros(20_000, kind)
    sound[15_000] = value
    bits = 8 * sound.itemsize
    assert "NaN or infinity" in refused(make_wav(sound.tobytes(), 3, bits)).message


def test_doubles_beyond_float32_and_integers_in_float(make_wav):
    assert "infinity" in refused(make_wav(np.full(100, 1e300, "<f8").tobytes(), 3, 64)).message
    assert "between -1 and 1" in refused(make_wav(np.full(100, 32767, "<f4").tobytes(), 3, 32)).message


@pytest.mark.parametrize("channels", [9, 200, 65535])
def test_absurd_channels(channels, make_wav):
    assert "channels" in refused(make_wav(bytes(channels * 20), channels=channels, align=2 * channels & 0xFFFF)).message


@pytest.mark.parametrize("rate", [1, 3999, 192_001, 1_000_000])
def test_absurd_rates(rate, make_wav):
    assert f"{rate} Hz" in refused(make_wav(bytes(2000), rate=rate)).message


def test_a_codec_that_is_not_on_the_list(make_file, make_tone):
    error = refused(make_file("matroska", "ac3", make_tone(44100, 0.5), 44100, "fltp"))
    assert "ac3" in error.message


def test_a_video_without_sound():
    import io

    import av

    sink = io.BytesIO()
    with av.open(sink, "w", format="mp4") as container:
        stream = container.add_stream("mpeg4", rate=10, width=64, height=64)
        container.mux(stream.encode(av.VideoFrame.from_ndarray(np.zeros((64, 64, 3), np.uint8), "rgb24")))
        container.mux(stream.encode(None))
    assert "no audio stream" in refused(sink.getvalue()).message


def test_rate_changes_in_the_middle(make_file, make_tone):
    first = make_file("adts", "aac", make_tone(44100, 0.5), 44100, "fltp")
    second = make_file("adts", "aac", make_tone(22050, 0.5), 22050, "fltp")
    assert "in the middle" in refused(first + second).message


def _box(tag: bytes, body: bytes) -> bytes:
    return struct.pack(">I4s", 8 + len(body), tag) + body


def _alias(path: bytes) -> bytes:
    """The body of an alis entry, in the classic Mac OS layout, that points at ``path``."""
    padded = path + bytes(len(path) % 2)
    names = b"\4" + b"Disk".ljust(27, b"\0") + bytes(12) + b"\4" + b"file".ljust(63, b"\0") + bytes(16)
    records = b"".join(struct.pack(">hH", kind, len(path)) + padded for kind in (2, 18))
    return bytes(4 + 10) + names + struct.pack(">hh16x", 1, 1) + records + struct.pack(">hH", -1, 0)


def test_a_mov_whose_samples_lie_in_another_file(tmp_path: Path, files):
    import av

    secret = tmp_path / "secret.pcm"
    secret.write_bytes(b"\x10\x20" * 50_000)
    file = files["mov-pcm"]
    at = file.index(b"dref") - 4
    old = struct.unpack_from(">I", file, at)[0]
    dref = _box(b"dref", bytes(4) + struct.pack(">I", 1) + _box(b"alis", _alias(os.fsencode(secret))))
    grown = bytearray(file[:at] + dref + file[at + old :])
    parents = [at - 8, *(grown.rindex(tag, 0, at) - 4 for tag in (b"minf", b"mdia", b"trak", b"moov"))]
    for parent in parents:
        struct.pack_into(">I", grown, parent, struct.unpack_from(">I", grown, parent)[0] + len(dref) - old)
    level = av.logging.get_level()
    av.logging.set_level(av.logging.WARNING)
    try:
        with av.logging.Capture() as log:
            refused(bytes(grown))
    finally:
        av.logging.set_level(level)
    # FFmpeg did see the reference, with its path, and did not follow it.
    assert any("Skipped opening external track" in line[2] and str(secret) in line[2] for line in log)


def test_an_mp4_whose_samples_run_to_the_end_and_are_cut_between_two(files):
    file = bytearray(files["m4a-fast-start"])
    start = file.index(b"mdat") + 4
    struct.pack_into(">I", file, start - 8, 0)
    assert len(decode(bytes(file), 44100)) == len(decode(files["m4a-fast-start"], 44100))
    table = file.index(b"stsz") + 12
    sizes = struct.unpack_from(">20I", file, table + 4)
    assert "its index lists" in refused(bytes(file[: start + sum(sizes)])).message


def test_samples_that_a_header_only_claims(files):
    file = bytearray(files["m4a"])
    at = file.index(b"stsz") + 8
    struct.pack_into(">II", file, at, 1, 60_000_000)
    assert "room for" in refused(bytes(file)).message


def test_a_lossless_frame_that_claims_millions_of_samples(files):
    file = bytearray(files["m4a-alac"])
    at = file.index(b"alac", file.index(b"alac", file.index(b"stsd")) + 4) + 8
    assert struct.unpack_from(">I", file, at)[0] == 4096
    struct.pack_into(">I", file, at, 1 << 24)
    refused(bytes(file))


def test_a_file_of_empty_elements_ends_soon(monkeypatch):
    monkeypatch.setattr("omni.audio.memory._STEP_SECONDS", 0.2)
    start = time.thread_time()
    error = refused(b"\x1a\x45\xdf\xa3\x80" + b"\xec\x80" * 2_000_000)
    assert "no audio" in error.message
    assert time.thread_time() - start < 2


def test_millions_of_tiny_frames_end_at_the_limit():
    frame = struct.pack(">I", 0xFFF31400) + bytes(20)
    start = time.thread_time()
    refused(frame * 1_000_000, max_seconds=30)
    assert time.thread_time() - start < 5


def _accepted_or_refused(data: bytes) -> None:
    with suppress(BadRequest), open_audio(data, sample_rate=16000, max_seconds=30) as reader:
        for block in reader:
            assert block.dtype == np.float32
            assert np.isfinite(block).all()


@settings(max_examples=400, deadline=5000, derandomize=True)
@given(
    name=st.sampled_from(NAMES),
    edits=st.lists(
        st.tuples(
            st.sampled_from(["flip", "set", "insert", "delete", "size"]),
            st.floats(0, 1, exclude_max=True) | st.floats(0, 0.02),
            st.binary(min_size=1, max_size=8),
        ),
        min_size=1,
        max_size=8,
    ),
)
def test_mutations_give_audio_or_bad_request(files, name, edits):
    data = bytearray(files[name])
    for kind, where, value in edits:
        at = int(where * len(data))
        if kind == "flip" and data:
            data[at] ^= value[0] or 1
        elif kind == "set":
            data[at : at + len(value)] = value
        elif kind == "insert":
            data[at:at] = value
        elif kind == "delete":
            del data[at : at + value[0] * 8]
        elif kind == "size":
            data[at : at + 4] = (b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", bytes(4), b"\0\0\0\1")[value[0] % 4]
    _accepted_or_refused(bytes(data))


@settings(max_examples=100, deadline=5000, derandomize=True)
@given(
    magic=st.sampled_from(
        [
            *(b"RIFF\0\0\0\0WAVEfmt ", b"OggS\0\2", b"\x1a\x45\xdf\xa3", b"\0\0\0\x08ftyp"),
            *(b"fLaC\0\0\0\x22", b"ID3\4\0\0", b"\xff\xfb\x90\xc4", b"\xff\xf1\x50\x80\x01\x00\xfc"),
        ]
    ),
    rest=st.binary(max_size=2000),
)
def test_a_magic_number_and_noise(magic, rest):
    _accepted_or_refused(magic + rest)
