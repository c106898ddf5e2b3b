"""Streams decoded piece by piece, alone and together, equal the whole decode."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fish_s2pro.codec.config import CodecConfig
from fish_s2pro.codec.decoder import CodecDecoder
from fish_s2pro.codec.loading import load_decoder, random_decoder
from omni.codecs import StreamingDecoder

EXACT = 1e-4
"""Rounding, which depends on the processor, adds up to 1e-5; anything forgotten between chunks is far more."""
"""The reference's tiny checkpoint turns float noise of 1e-6 into 5e-5, ten times more than weights of usual size do;
where it is used the tolerance is 1e-4."""


@pytest.fixture(scope="module")
def tiny(ckpt: Path) -> CodecDecoder:
    return load_decoder(ckpt)


@pytest.fixture(scope="module")
def real_shape() -> CodecDecoder:
    """The published model's depth, windows and rates at a sixteenth of its width."""
    return random_decoder(CodecConfig().scaled(1 / 16))


@pytest.fixture(scope="module")
def other() -> CodecDecoder:
    """Windows, rates, factors and counts that differ from the published model's."""
    transformer = {"window_size": 5, "n_layer": 3, "n_head": 4, "dim": 64, "head_dim": 16, "intermediate_size": 80}
    fields = {
        "encoder_dim": 16,
        "encoder_rates": [4, 4],
        "encoder_transformer_layers": [0, 0],
        "decoder_dim": 40,
        "decoder_rates": [4, 2, 2],
        "quantizer": {
            "input_dim": 64,
            "n_codebooks": 5,
            "codebook_size": 24,
            "codebook_dim": 6,
            "downsample_factor": [3, 2],
            "transformer": transformer,
        },
    }
    return random_decoder(CodecConfig.model_validate(fields))


def random_codes(decoder: CodecDecoder, frames: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    sizes = decoder.config.quantizer.codebook_sizes
    return torch.stack([torch.randint(0, size, (frames,), generator=generator) for size in sizes])


def stream(streams: StreamingDecoder, codes: Tensor, chunks: Sequence[int]) -> Tensor:
    """All of ``codes`` through one stream; the chunk sizes repeat."""
    place = streams.open()
    pieces, first, turn = [], 0, 0
    while first < codes.shape[1]:
        size = chunks[turn % len(chunks)]
        pieces += streams.step([(place, codes[:, first : first + size])])
        first, turn = first + size, turn + 1
    streams.close(place)
    return torch.cat(pieces)


def equal(ours: Tensor, whole: Tensor, tolerance: float = EXACT) -> None:
    torch.testing.assert_close(ours, whole, atol=tolerance, rtol=0.0)


@pytest.mark.parametrize("chunks", [[1], [4], [1, 3, 2, 7, 1, 5], [8, 8, 20]])
def test_chunks_equal_the_reference_and_the_whole(
    tiny: CodecDecoder, golden: dict[str, Tensor], chunks: list[int]
) -> None:
    codes = golden["dec.40.codes"].long()
    samples = stream(StreamingDecoder(tiny), codes, chunks)
    equal(samples, golden["dec.40.audio"], 2e-4)
    equal(samples, tiny.decode(codes[None])[0], 1e-4)


@pytest.mark.parametrize("chunks", [[1], [4], [1, 2, 4, 8, 8, 3]])
def test_beyond_the_window_of_the_published_model(real_shape: CodecDecoder, chunks: list[int]) -> None:
    codes = random_codes(real_shape, 300)
    equal(stream(StreamingDecoder(real_shape), codes, chunks), real_shape.decode(codes[None])[0])


@pytest.mark.parametrize("chunks", [[1], [3], [1, 5, 2, 8]])
def test_other_dimensions(other: CodecDecoder, chunks: list[int]) -> None:
    codes = random_codes(other, 120)
    equal(stream(StreamingDecoder(other), codes, chunks), other.decode(codes[None])[0])


def test_batch_of_streams_of_different_age_and_speed(other: CodecDecoder) -> None:
    streams = StreamingDecoder(other, streams=4, max_frames=4, max_batch=3)
    lengths = (1, 2, 4, 9, 17, 23, 30)
    chunks = ([1], [2], [4], [3, 1], [1, 5], [7], [6, 2])
    codes = [random_codes(other, length, seed) for seed, length in enumerate(lengths)]
    # Streams join at different steps, out of order, and leave when they end.
    joins = (0, 4, 1, 0, 2, 5, 3)
    places: dict[int, int] = {}
    sent = [0] * len(codes)
    pieces: list[list[Tensor]] = [[] for _ in codes]
    for turn in range(60):
        jobs, members = [], []
        for i in reversed(range(len(codes))):
            if turn < joins[i] or sent[i] >= lengths[i]:
                continue
            if i not in places:
                places[i] = streams.open()
            size = chunks[i][turn % len(chunks[i])]
            jobs.append((places[i], codes[i][:, sent[i] : sent[i] + size]))
            members.append(i)
            sent[i] += size
        for i, samples in zip(members, streams.step(jobs), strict=True):
            pieces[i].append(samples)
            if sent[i] >= lengths[i]:
                streams.close(places[i])
    assert streams.open_streams == 0
    for i, parts in enumerate(pieces):
        equal(torch.cat(parts), other.decode(codes[i][None])[0])
        equal(torch.cat(parts), stream(StreamingDecoder(other, max_frames=4), codes[i], chunks[i]))


def test_batch_equals_each_stream_alone(real_shape: CodecDecoder) -> None:
    codes = [random_codes(real_shape, 6, seed) for seed in range(5)]
    streams = StreamingDecoder(real_shape)
    places = [streams.open() for _ in codes]
    together = [torch.cat(parts) for parts in zip(
        streams.step([(p, c[:, :2]) for p, c in zip(places, codes, strict=True)]),
        streams.step([(p, c[:, 2:]) for p, c in zip(places, codes, strict=True)]),
        strict=True,
    )]  # fmt: skip
    for samples, own in zip(together, codes, strict=True):
        equal(samples, stream(StreamingDecoder(real_shape), own, [2, 4]))


def test_a_place_is_used_again_without_a_trace(tiny: CodecDecoder) -> None:
    streams = StreamingDecoder(tiny, streams=1)
    codes = random_codes(tiny, 12, 1)
    fresh = stream(streams, codes, [3])
    place = streams.open()
    streams.step([(place, random_codes(tiny, 20, 2))])
    # Even a stream that went wrong leaves nothing behind.
    with torch.inference_mode():
        for buffer in streams._state._buffers.values():
            buffer[place] = float("nan")
    streams.close(place)
    again = streams.open()
    assert again == place
    streams.close(again)
    assert torch.equal(stream(streams, codes, [3]), fresh)


def test_more_streams_than_places_at_first(tiny: CodecDecoder) -> None:
    codes = [random_codes(tiny, 6, seed) for seed in range(5)]
    streams = StreamingDecoder(tiny, streams=1)
    places = [streams.open()]
    pieces = [streams.step([(places[0], codes[0][:, :3])])]
    places += [streams.open() for _ in range(4)]
    assert len(set(places)) == 5
    later = streams.step([(places[0], codes[0][:, 3:]), *zip(places[1:], codes[1:], strict=True)])
    equal(torch.cat([pieces[0][0], later[0]]), tiny.decode(codes[0][None])[0], 1e-4)
    for samples, own in zip(later[1:], codes[1:], strict=True):
        equal(samples, tiny.decode(own[None])[0], 1e-4)
    # The places of ended streams serve new ones: the state does not grow with the number of streams ever opened.
    for place in places:
        streams.close(place)
    assert {streams.open() for _ in range(5)} == set(places)


def test_an_empty_step_changes_nothing(tiny: CodecDecoder) -> None:
    streams = StreamingDecoder(tiny)
    place = streams.open()
    codes = random_codes(tiny, 4)
    first = streams.step([(place, codes[:, :2])])[0]
    assert streams.step([]) == []
    assert streams.step([(place, codes[:, :0])])[0].shape == (0,)
    equal(torch.cat([first, streams.step([(place, codes[:, 2:])])[0]]), tiny.decode(codes[None])[0], 1e-4)


def test_state_per_stream_is_the_ring_and_the_tails(real_shape: CodecDecoder) -> None:
    streams = StreamingDecoder(real_shape, streams=2, max_frames=8)
    stream(streams, random_codes(real_shape, 2), [1])
    config = real_shape.config
    transformer = config.quantizer.transformer
    ring = transformer.n_layer * 2 * (transformer.window_size - 1 + 8) * transformer.dim
    dim, width = config.quantizer.input_dim, config.decoder_dim
    residuals = 6 * (1 + 3 + 9)
    blocks = sum(width // 2**i + residuals * (width // 2 ** (i + 1)) for i in range(4))
    tails = 2 * 6 * dim + 6 * dim + blocks + 6 * (width // 16)
    assert streams.bytes_per_stream == 4 * (ring + tails)


def test_half_precision_stays_near(tiny: CodecDecoder, ckpt: Path) -> None:
    half = load_decoder(ckpt, dtype=torch.bfloat16)
    codes = random_codes(tiny, 20)
    samples = stream(StreamingDecoder(half), codes, [1, 4])
    assert samples.dtype == torch.float32
    whole = tiny.decode(codes[None])[0]
    assert (samples - whole).square().mean().sqrt() < 0.25 * whole.square().mean().sqrt()
