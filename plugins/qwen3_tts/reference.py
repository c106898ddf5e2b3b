"""Reference voices: from an uploaded file to a speaker vector and codes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch

from omni import Aggregator, BadRequest, Encoder, EncoderOptions, StageFailed
from omni.audio import decode
from omni.codecs import device_of
from qwen3_tts.codec.config import published
from qwen3_tts.codec.loading import load_encoder, random_encoder
from qwen3_tts.mel import SAMPLE_RATE
from qwen3_tts.messages import Part, Piece, Ready, Voice
from qwen3_tts.origin import RandomModel, describe_stage, weights_folder
from qwen3_tts.speaker import MIN_SECONDS, load_speaker_encoder, random_speaker_encoder

MAX_REFERENCE_SECONDS = 180.0
"""Longer voices would fill the model's context before any text is spoken."""


def load_reference(data: Any, *, param: str) -> np.ndarray:
    """An encoded audio file (bytes or uint8 array) as mono float32 ``(samples,)`` at 24 kHz: channels are averaged,
    loudness stays.

    Raises:
        BadRequest: not an audio file, damaged, or shorter or longer than a voice may be.
    """
    samples = decode(data, SAMPLE_RATE, mono=True, max_seconds=MAX_REFERENCE_SECONDS, param=param)
    if len(samples) < MIN_SECONDS * SAMPLE_RATE:
        raise BadRequest(f"a reference voice needs at least {MIN_SECONDS:g} seconds", param=param)
    return samples


class ReferenceOptions(EncoderOptions):
    """``device``: a torch device, ``auto`` takes CUDA where there is one. Encoding is float32 on every device.

    ``windowed``: a frame's codes depend on 10 s of audio before it, as in newer releases of transformers, and not on
    all of it, as in the reference; there is no difference for voices up to 10 s.
    """

    device: str = "auto"
    cache_mb: float = 64.0
    windowed: bool = False
    random: RandomModel | None = None


class ReferenceEncoder(Encoder[Part, Part]):
    """Turns ``audio`` into ``voice``; other parts pass. For a checkpoint that clones no voices it has nothing to load.

    Voices of a batch are encoded one by one: each fills the machine on its own, and what it becomes then depends on
    nothing else.
    """

    Options = ReferenceOptions
    options: ReferenceOptions

    def load(self) -> None:
        options, random = self.options, self.options.random
        config = describe_stage(self.context, random).config
        if config.kind != "base":
            return
        device = device_of(options.device)
        assert config.speaker is not None
        if random is not None:
            self._speaker = random_speaker_encoder(config.speaker, random.seed, device)
            self._codec = random_encoder(published(random.codec_width), random.seed, device)
        else:
            folder = weights_folder(self.context)
            self._speaker = load_speaker_encoder(folder, config.speaker, device)
            self._codec = load_encoder(folder, device, windowed=options.windowed)
        self._codebooks = config.codebooks

    def key(self, item: Part) -> Part | None:
        return None if item.audio is None else item

    def encode(self, batch: Sequence[Part]) -> Sequence[Part]:
        return [part if part.audio is None else Part(voice=self._encode(part.audio, part.with_codes)) for part in batch]

    def _encode(self, audio: np.ndarray, with_codes: bool) -> Voice:
        wave = torch.from_numpy(np.array(audio, np.float32))
        vector = self._speaker.encode(wave).cpu().numpy()
        if not with_codes:
            return Voice(vector=vector, codes=np.zeros((self._codebooks, 0), np.int32))
        return Voice(vector=vector, codes=self._codec.encode(wave).to("cpu", torch.int32).numpy())


class _Collected:
    def __init__(self) -> None:
        self.voice: Voice | None = None
        self.waiting: list[Piece] = []


class CollectVoice(Aggregator[Part, Ready, _Collected]):
    """Gives each piece of text the voice of its request."""

    def open(self) -> _Collected:
        return _Collected()

    def add(self, state: _Collected, item: Part, source: str) -> Iterable[Ready]:
        state.voice = item.voice or state.voice
        if item.piece is not None:
            state.waiting.append(item.piece)
        while state.waiting and (state.voice is not None or not state.waiting[0].cloned):
            piece = state.waiting.pop(0)
            yield Ready(piece=piece, voice=state.voice if piece.cloned else None)

    def result(self, state: _Collected) -> Iterable[Ready]:
        if state.waiting:
            raise StageFailed("a request ended before its voice had arrived")
        return ()
