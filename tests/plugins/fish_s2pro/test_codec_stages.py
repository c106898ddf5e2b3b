"""The vocoder and the reference encoder as stages: chunks, ends, keys, parts."""

from __future__ import annotations

import io
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from fish_s2pro.messages import CodeFrames, Encoded, Part, Prepared
from fish_s2pro.reference import MAX_REFERENCE_SECONDS, CollectReferences, ReferenceEncoder, load_reference
from fish_s2pro.vocoder import Vocoder
from omni import BadRequest, DecodeJob, Recipe, Speech, StageContext, StageFailed, StageSpec, Usage, WeightsError
from omni.messages import decode as from_wire
from omni.messages import encode as to_wire

RECIPE = Recipe(
    name="fish-codec",
    summary="codec stages alone",
    license="-",
    task=Speech(sample_rate=44100),
    stages=[StageSpec("vocoder", "fish_s2pro.vocoder:Vocoder")],
)


def stage(cls: Any, weights: Path | None, **options: Any) -> Any:
    made = cls(cls.Options(device="cpu", **options), StageContext(RECIPE, cls.__name__.lower(), weights=weights))
    made.load()
    return made


@pytest.fixture(scope="module")
def vocoder(ckpt: Path) -> Vocoder:
    return stage(Vocoder, ckpt)


@pytest.fixture(scope="module")
def encoder(ckpt: Path) -> ReferenceEncoder:
    return stage(ReferenceEncoder, ckpt)


def frames(codes: Tensor, **end: Any) -> CodeFrames:
    return CodeFrames(codes=codes.numpy(), **end)


def wav(samples: np.ndarray, rate: int) -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(1 if samples.ndim == 1 else samples.shape[1])
        out.setsampwidth(2)
        out.setframerate(rate)
        out.writeframes(np.rint(samples * 32768).astype("<i2").tobytes())
    return file.getvalue()


# Vocoder -------------------------------------------------------------------------------------------------------


def test_streams_through_the_stage(vocoder: Vocoder, golden: dict[str, Tensor]) -> None:
    long, short = golden["dec.40.codes"], golden["dec.5.codes"]
    items = [frames(long[:, i : i + 1]) for i in range(40)]
    states = vocoder.open(items[0]), vocoder.open(frames(short))
    heard: list[list[np.ndarray]] = [[], []]
    first = 0
    for size in (1, 2, 4, 8, 8, 8, 8, 1):
        batch = [DecodeJob(states[0], items[first : first + size], False)]
        if first == 3:
            batch.insert(0, DecodeJob(states[1], [frames(short, finish_reason="stop")], True))
        outputs = vocoder.decode(batch)
        for job, chunks in zip(batch, outputs, strict=True):
            assert len(chunks) == 1
            assert chunks[0].sample_rate == 44100
            assert chunks[0].samples.dtype == np.float32
            heard[states.index(job.state)].append(chunks[0].samples)
        first += size
    assert [len(samples) for samples in heard[0]] == [2048 * n for n in (1, 2, 4, 8, 8, 8, 8, 1)]
    np.testing.assert_allclose(np.concatenate(heard[0]), golden["dec.40.audio"], atol=2e-4, rtol=0)
    np.testing.assert_allclose(np.concatenate(heard[1]), golden["dec.5.audio"], atol=2e-4, rtol=0)
    for state in states:
        vocoder.discard(state)
    assert vocoder._streams.open_streams == 0


def test_the_end_carries_usage_and_reason(vocoder: Vocoder, golden: dict[str, Tensor]) -> None:
    codes = golden["dec.2.codes"]
    state = vocoder.open(frames(codes))
    items = [frames(codes, usage=Usage(7, 1)), frames(codes[:, :0], usage=Usage(0, 2), finish_reason="length")]
    (chunks,) = vocoder.decode([DecodeJob(state, items, False)])
    assert len(chunks) == 1
    assert len(chunks[0].samples) == 4096
    assert chunks[0].usage == Usage(7, 3)
    assert chunks[0].finish_reason == "length"
    assert vocoder.decode([DecodeJob(state, [], True)]) == [[]]
    (only_reason,) = vocoder.decode([DecodeJob(state, [frames(codes[:, :0], finish_reason="stop")], True)])
    assert [(len(chunk.samples), chunk.finish_reason) for chunk in only_reason] == [(0, "stop")]
    vocoder.discard(state)


def test_codes_of_the_caller_stay(vocoder: Vocoder, golden: dict[str, Tensor]) -> None:
    codes = golden["dec.clamp.codes"].numpy().copy()
    state = vocoder.open(CodeFrames(codes=codes))
    (chunks,) = vocoder.decode([DecodeJob(state, [CodeFrames(codes=codes)], True)])
    vocoder.discard(state)
    assert np.array_equal(codes, golden["dec.clamp.codes"].numpy())
    np.testing.assert_allclose(chunks[0].samples, golden["dec.clamp.audio"], atol=2e-4, rtol=0)


def test_first_chunk_is_one_frame_then_they_grow() -> None:
    options = Vocoder.Options()
    assert (options.first_chunk, options.chunk_growth, options.max_chunk) == (1, 2.0, 8)
    with pytest.raises(ValidationError):
        Vocoder.Options(dtype="int8")


@pytest.mark.parametrize("cls", [Vocoder, ReferenceEncoder])
def test_a_stage_without_weights_says_so(cls: Any) -> None:
    with pytest.raises(WeightsError, match="--weights"):
        stage(cls, None)


def test_random_weights_in_place_of_a_checkpoint() -> None:
    vocoder = stage(Vocoder, None, random_width=1 / 16)
    encoder = stage(ReferenceEncoder, None, random_width=1 / 16)
    sound = np.random.default_rng(0).normal(0, 0.1, 5000).astype(np.float32)
    (part,) = encoder.encode([Part(audio=sound)])
    assert part.codes.shape == (10, 3)
    state = vocoder.open(CodeFrames(codes=part.codes))
    (chunks,) = vocoder.decode([DecodeJob(state, [CodeFrames(codes=part.codes)], True)])
    assert chunks[0].samples.shape == (3 * 2048,)
    assert 0.001 < np.abs(chunks[0].samples).max() < 1


# References ----------------------------------------------------------------------------------------------------


def test_references_are_encoded_and_the_text_passes(encoder: ReferenceEncoder, golden: dict[str, Tensor]) -> None:
    wave = golden["enc.wav"].numpy()
    text = Part(prepared=Prepared(batches=["Hello."]))
    voices = [Part(audio=wave[:n]) for n in (10257, 2048)]

    results = encoder.encode([voices[0], text, voices[1]])

    assert results[1] is text
    for result, n in ((results[0], 10257), (results[2], 2048)):
        assert result.codes.dtype == np.int32
        assert np.array_equal(result.codes, golden[f"enc.{n}.codes"].numpy())
    with pytest.raises(BadRequest, match="no audio"):
        encoder.encode([Part(audio=wave[:0])])


def test_only_the_sound_of_a_voice_is_its_key(encoder: ReferenceEncoder, golden: dict[str, Tensor]) -> None:
    wave = golden["enc.wav"].numpy()
    key = encoder.key(Part(audio=wave))
    assert key is not None
    assert key.audio is wave
    assert key.prepared is None
    assert encoder.key(Part(prepared=Prepared(batches=["Hello."]))) is None


def test_parts_cross_a_process_boundary(golden: dict[str, Tensor]) -> None:
    prepared = Prepared(batches=["a", "b"], reference_texts=["c"], seed=5)
    codes = golden["enc.2048.codes"].numpy()
    part = from_wire(Part, *to_wire(Part(prepared=prepared)))
    assert part.prepared == prepared
    assert part.audio is None
    assert part.codes is None
    encoded = from_wire(Encoded, *to_wire(Encoded(prepared=prepared, codes=[codes, codes[:, :0]])))
    assert [c.shape for c in encoded.codes] == [(4, 1), (4, 0)]
    assert np.array_equal(encoded.codes[0], codes)


def collect(*items: tuple[Part, str]) -> list[Encoded]:
    aggregator = CollectReferences(CollectReferences.Options(), StageContext(RECIPE, "collect"))
    state = aggregator.open()
    results = [result for item, source in items for result in aggregator.add(state, item, source)]
    return [*results, *aggregator.result(state)]


@pytest.mark.parametrize("text_first", [True, False])
def test_parts_are_joined_once_all_are_there(golden: dict[str, Tensor], text_first: bool) -> None:
    prepared = Prepared(batches=["Hello."], reference_texts=["one", "two"])
    one, two = golden["enc.2048.codes"].numpy(), golden["enc.10257.codes"].numpy()
    voices = [(Part(codes=one), "reference"), (Part(codes=two), "reference")]
    text = [(Part(audio=np.zeros(3, np.float32)), "preprocess"), (Part(prepared=prepared), "preprocess")]
    again = [(Part(prepared=prepared), "reference")]

    results = collect(*text, *voices, *again) if text_first else collect(*voices, *again, *text)

    assert len(results) == 1
    assert results[0].prepared == prepared
    assert [c is original for c, original in zip(results[0].codes, (one, two), strict=True)] == [True, True]


def test_a_text_without_references_goes_on_at_once() -> None:
    aggregator = CollectReferences(CollectReferences.Options(), StageContext(RECIPE, "collect"))
    results = list(aggregator.add(aggregator.open(), Part(prepared=Prepared(batches=["Hi."])), "preprocess"))
    assert [result.codes for result in results] == [[]]


def test_a_missing_reference_is_an_error_not_another_voice() -> None:
    with pytest.raises(StageFailed, match="references"):
        collect((Part(prepared=Prepared(batches=["Hi."], reference_texts=["one"])), "preprocess"))


def test_a_file_at_the_codecs_rate_is_taken_as_it_is(encoder: ReferenceEncoder, golden: dict[str, Tensor]) -> None:
    sound = np.rint(golden["enc.wav"].numpy() * 32768).clip(-32768, 32767) / 32768
    loaded = load_reference(wav(sound, 44100), 44100)
    assert loaded.dtype == np.float32
    assert np.array_equal(loaded, sound.astype(np.float32))
    direct = encoder._encoder.encode(torch.from_numpy(sound.astype(np.float32)))
    (part,) = encoder.encode([Part(audio=loaded)])
    assert np.array_equal(part.codes, direct.numpy())


def test_other_rates_are_converted_and_channels_averaged() -> None:
    time = np.arange(24000) / 24000
    tone = 0.4 * np.sin(2 * np.pi * 440 * time)
    loaded = load_reference(wav(np.stack([tone, np.zeros_like(tone)], 1), 24000), 44100)
    assert loaded.shape == (44100,)
    expected = 0.2 * np.sin(2 * np.pi * 440 * np.arange(44100) / 44100)
    assert np.abs(loaded - expected)[500:-500].max() < 1e-3


@pytest.mark.parametrize(
    "data", [b"", b"no audio at all", wav(np.zeros(int(MAX_REFERENCE_SECONDS * 8000) + 8000), 8000)]
)
def test_unusable_files_name_the_field(data: bytes) -> None:
    with pytest.raises(BadRequest) as error:
        load_reference(data, 44100, param="references[1].audio")
    assert error.value.param == "references[1].audio"
