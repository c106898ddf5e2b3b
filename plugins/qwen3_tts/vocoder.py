"""Frames of codes to audio, as they come."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import Field

from omni import AudioChunk, DecodeJob, Decoder, DecoderOptions, Usage
from omni.codecs import StreamingDecoder, device_of
from qwen3_tts.codec.config import published
from qwen3_tts.codec.loading import load_decoder, random_decoder
from qwen3_tts.messages import CodeFrames
from qwen3_tts.origin import RandomModel, weights_folder

_MB = 1 << 20
_MOST_FRAMES = 32
"""Frames of a stream that are worked on at once: what a stream remembers grows with them, speed hardly does."""


class VocoderOptions(DecoderOptions):
    """The first frame (80 ms of audio) leaves at once; chunks then double up to eight frames, which share the cost of a
    step.

    ``device``: a torch device, ``auto`` takes CUDA where there is one. ``dtype``: streaming equals the whole decode to
    float noise in float32 only. ``streams``: places for stream states made at the start; more are made when needed.
    ``voices_mb``: memory for what streams of cloned voices start from, so that a known voice starts at once.
    """

    first_chunk: Annotated[int, Field(ge=1)] = 1
    chunk_growth: Annotated[float, Field(ge=1)] = 2.0
    max_chunk: Annotated[int, Field(ge=1)] = 8
    device: str = "auto"
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    streams: Annotated[int, Field(ge=1, le=4096)] = 8
    voices_mb: Annotated[float, Field(ge=0)] = 256.0
    random: RandomModel | None = None


@dataclass
class Sounding:
    """``stream``: its place in the decoder; ``cut``: a piece of the text has ended at a limit."""

    stream: int
    cut: bool = False


class Vocoder(Decoder[CodeFrames, AudioChunk]):
    """Exact: the samples of a piece are those of its whole decode, whatever the chunks and the other streams."""

    Options = VocoderOptions
    options: VocoderOptions

    def load(self) -> None:
        options, random = self.options, self.options.random
        device, dtype = device_of(options.device), getattr(torch, options.dtype)
        if random is not None:
            decoder = random_decoder(published(random.codec_width), random.seed, device, dtype)
        else:
            decoder = load_decoder(weights_folder(self.context), device, dtype)
        self._sample_rate = decoder.config.sample_rate
        self._streams = StreamingDecoder(
            decoder,
            streams=options.streams,
            max_frames=min(_MOST_FRAMES, max(options.first_chunk, options.max_chunk)),
            max_batch=options.max_batch,
            kept_bytes=int(options.voices_mb * _MB),
        )

    def open(self, first: CodeFrames) -> Sounding:
        return Sounding(self._streams.open())

    def discard(self, state: Sounding) -> None:
        self._streams.close(state.stream)

    def decode(self, batch: Sequence[DecodeJob]) -> Sequence[Sequence[AudioChunk]]:
        parts = [_parts(job.items) for job in batch]
        waves: list[list[np.ndarray]] = [[] for _ in batch]
        for turn in range(max(len(part) for part in parts)):
            steps: list[tuple[int, torch.Tensor]] = []
            places: list[int] = []
            for place, job in enumerate(batch):
                if turn < len(parts[place]):
                    after, codes = parts[place][turn]
                    if after is not None:
                        self._streams.restart(job.state.stream, torch.from_numpy(after))
                    if codes.shape[1]:
                        steps.append((job.state.stream, torch.from_numpy(codes)))
                        places.append(place)
            for place, samples in zip(places, self._streams.step(steps), strict=True):
                waves[place].append(samples.numpy())
        return [self._chunks(job, wave) for job, wave in zip(batch, waves, strict=True)]

    def _chunks(self, job: DecodeJob, waves: list[np.ndarray]) -> list[AudioChunk]:
        usages = [item.usage for item in job.items if item.usage is not None]
        reasons = [item.finish_reason for item in job.items if item.finish_reason is not None]
        if not (waves or usages or reasons):
            return []
        # The last reason counts for the request: one piece that was cut is not made up for by the next.
        state: Sounding = job.state
        state.cut |= "length" in reasons
        usage = Usage(sum(u.input_tokens for u in usages), sum(u.output_tokens for u in usages)) if usages else None
        return [
            AudioChunk(
                samples=np.concatenate(waves) if waves else np.zeros(0, np.float32),
                sample_rate=self._sample_rate,
                usage=usage,
                finish_reason=("length" if state.cut else reasons[-1]) if reasons else None,
            )
        ]


def _parts(items: Sequence[CodeFrames]) -> list[tuple[np.ndarray | None, np.ndarray]]:
    """The new frames of a stream, cut where a piece of the text begins: ``(after, codes)`` with int64 copies."""
    found: list[tuple[np.ndarray | None, list[np.ndarray]]] = []
    for item in items:
        if item.after is not None or not found:
            found.append((None if item.after is None else np.array(item.after, np.int64), []))
        found[-1][1].append(np.asarray(item.codes, np.int64))
    return [(after, np.concatenate(codes, axis=1)) for after, codes in found]
