"""Streams decoded piece by piece, alone and together, equal the whole decode."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from omni.codecs import StreamingDecoder, decode_whole
from qwen3_tts.codec.config import published
from qwen3_tts.codec.decoder import CodecDecoder
from qwen3_tts.codec.loading import load_decoder, random_decoder

CPU = torch.device("cpu")
EXACT = 1e-4
"""Rounding, which depends on the processor, adds up to 1e-5; anything forgotten between chunks is far more."""
FRAME = 1920


@pytest.fixture(scope="module")
def tiny(folders) -> CodecDecoder:
    return load_decoder(folders["base"], CPU)


@pytest.fixture(scope="module")
def real_shape() -> CodecDecoder:
    """The published codec's depth, windows and rates at a small part of its width."""
    return random_decoder(published(1 / 32), 0, CPU)


def random_codes(decoder: CodecDecoder, frames: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, decoder.config.decoder.codebook_size, (16, frames), generator=generator)


def whole_of(decoder: CodecDecoder, *parts: Tensor) -> Tensor:
    return decode_whole(decoder, torch.cat(parts, 1)[None])[0]


def stream(streams: StreamingDecoder, codes: Tensor, chunks: Sequence[int], place: int | None = None) -> Tensor:
    """All of ``codes`` through one stream; the chunk sizes repeat."""
    place = streams.open() if place is None else place
    pieces, first, turn = [], 0, 0
    while first < codes.shape[1]:
        size = chunks[turn % len(chunks)]
        pieces += streams.step([(place, codes[:, first : first + size])])
        first, turn = first + size, turn + 1
    return torch.cat(pieces)


def equal(ours: Tensor, whole: Tensor) -> None:
    assert ours.shape == whole.shape
    torch.testing.assert_close(ours, whole, atol=EXACT, rtol=0.0)


@pytest.mark.parametrize("chunks", [[1], [4], [1, 3, 2, 7, 1, 5], [8, 8, 20]])
def test_chunks_equal_the_reference(tiny, golden, chunks: list[int]) -> None:
    codes = golden["codec.decode_codes_330"].t()
    found = stream(StreamingDecoder(tiny), codes, chunks)
    torch.testing.assert_close(
        found[296 * FRAME :], golden["codec.decode_330_full_from_frame_296"], atol=EXACT, rtol=0.0
    )
    equal(found, whole_of(tiny, codes))


@pytest.mark.parametrize("chunks", [[1, 2, 4, 8], [5]])
def test_chunks_beyond_the_real_window(real_shape, chunks: list[int]) -> None:
    codes = random_codes(real_shape, 90)
    equal(stream(StreamingDecoder(real_shape), codes, chunks), whole_of(real_shape, codes))


def test_streams_of_any_age_share_steps(tiny) -> None:
    streams = StreamingDecoder(tiny, streams=2, max_frames=4, max_batch=3)
    codes = [random_codes(tiny, 13 + 3 * i, i) for i in range(5)]
    places = [streams.open() for _ in codes]
    assert streams.open_streams == 5
    done = [0] * 5
    pieces: list[list[Tensor]] = [[] for _ in codes]
    turn = 0
    while any(done[i] < codes[i].shape[1] for i in range(5)):
        jobs = []
        for i in range(5):
            # They come in one after the other, with chunks of their own.
            size = 0 if turn < i else 1 + (turn + i) % 6
            jobs.append((i, codes[i][:, done[i] : done[i] + size]))
        jobs = [(i, c) for i, c in jobs if c.shape[1]]
        for (i, c), samples in zip(jobs, streams.step([(places[i], c) for i, c in jobs]), strict=True):
            pieces[i].append(samples)
            done[i] += c.shape[1]
        turn += 1
    for i in range(5):
        equal(torch.cat(pieces[i]), whole_of(tiny, codes[i]))


def test_a_place_is_used_again_without_a_trace(tiny) -> None:
    streams = StreamingDecoder(tiny, streams=1)
    first = streams.open()
    stream(streams, random_codes(tiny, 12, 1), [3], first)
    streams.close(first)
    again = streams.open()
    assert again == first
    codes = random_codes(tiny, 9, 2)
    equal(stream(streams, codes, [2], again), whole_of(tiny, codes))


@pytest.mark.parametrize("kept", [0, 1 << 24], ids=["anew", "kept"])
@pytest.mark.parametrize("silent", [0, 1, 9, 10, 11, 40])
def test_frames_that_nobody_hears(real_shape, silent: int, kept: int) -> None:
    """They count as if they had been decoded, whether for the first time or from what was kept of them."""
    before, codes = random_codes(real_shape, silent, 3), random_codes(real_shape, 14, 4)
    expected = whole_of(real_shape, before, codes)[silent * FRAME :]
    streams = StreamingDecoder(real_shape, streams=1, max_frames=4, kept_bytes=kept)
    place = streams.open()
    for _ in range(2):
        stream(streams, random_codes(real_shape, 5, 5), [5], place)
        streams.restart(place, before)
        equal(stream(streams, codes, [1, 4], place), expected)


def test_what_is_kept_is_bounded(tiny) -> None:
    streams = StreamingDecoder(tiny, streams=1)
    place = streams.open()
    streams.restart(place, random_codes(tiny, 3))
    size = streams.bytes_per_stream
    streams = StreamingDecoder(tiny, streams=1, kept_bytes=int(2.5 * size))
    place = streams.open()
    decoded = []
    skip = tiny.skip
    tiny.skip = lambda codes, step, following: (decoded.append(codes.shape[2]), skip(codes, step, following))[1]
    try:
        for seed in (1, 2, 1, 3, 1, 2):
            streams.restart(place, random_codes(tiny, 3, seed))
    finally:
        del tiny.skip
    # The third voice takes the place of the second, which was used longest ago.
    assert len(decoded) == 4


def test_one_step_at_a_time_from_many_threads(tiny) -> None:
    streams = StreamingDecoder(tiny, streams=1)
    codes = [random_codes(tiny, 10, seed) for seed in range(4)]
    found: dict[int, Tensor] = {}

    def run(i: int) -> None:
        found[i] = stream(streams, codes[i], [1 + i])

    threads = [threading.Thread(target=run, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i in range(4):
        equal(found[i], whole_of(tiny, codes[i]))


def test_the_reach_of_the_convolutions(real_shape) -> None:
    """Changing a latent further back than ``reach`` changes nothing, and one frame nearer does."""
    from omni.codecs import Step, StreamState

    def last(change: int) -> Tensor:
        latents = torch.randn(1, real_shape.config.decoder.latent_dim, 14, generator=torch.Generator().manual_seed(0))
        if change:
            latents[..., 13 - change] += 1.0
        with torch.inference_mode():
            return real_shape.waveform(latents, Step(StreamState(1, 14, CPU, torch.float32), [0], [0]))[0, -FRAME:]

    reach = real_shape.reach
    assert reach == 10
    assert torch.equal(last(reach + 1), last(0))
    assert not torch.equal(last(reach), last(0))


def test_codes_out_of_range_mean_the_nearest_and_stay(tiny) -> None:
    codes = random_codes(tiny, 4)
    wild = codes.clone()
    wild[3, 1], wild[5, 2] = 4000, -1
    tame = codes.clone()
    tame[3, 1], tame[5, 2] = tiny.config.decoder.codebook_size - 1, 0
    kept = wild.clone()
    equal(whole_of(tiny, wild), whole_of(tiny, tame))
    assert torch.equal(wild, kept)
