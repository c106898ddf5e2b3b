"""Frames of codes to audio, as they come."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import Field

from fish_s2pro.codec.config import CodecConfig, RandomWidth
from fish_s2pro.codec.loading import load_decoder, random_decoder, weights_folder
from fish_s2pro.messages import CodeFrames
from omni import AudioChunk, DecodeJob, Decoder, DecoderOptions, Usage
from omni.codecs import StreamingDecoder, device_of

_AT_ONCE = 64
"""Frames of a stream that are decoded together; a longer chunk is decoded in pieces, so that state stays small."""
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class VocoderOptions(DecoderOptions):
    """The first frame (46 ms of audio at the published model's rate) leaves at once; chunks then double up to eight
    frames (372 ms), which share the cost of a step.

    ``device``: a torch device, ``auto`` takes CUDA where there is one. ``dtype``: streaming equals the whole decode to
    float noise in float32 only. ``streams``: places for stream states made at the start; more are made when needed.
    ``random_width``: random weights of this fraction of the published widths, in place of a checkpoint.
    """

    first_chunk: Annotated[int, Field(ge=1)] = 1
    chunk_growth: Annotated[float, Field(ge=1)] = 2.0
    max_chunk: Annotated[int, Field(ge=1)] = 8
    device: str = "auto"
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    streams: Annotated[int, Field(ge=1, le=4096)] = 8
    random_width: RandomWidth = None


class Vocoder(Decoder[CodeFrames, AudioChunk]):
    """Exact: the samples of a stream are those of the whole decode, whatever the chunks and the other streams."""

    Options = VocoderOptions
    options: VocoderOptions

    def load(self) -> None:
        options = self.options
        device, dtype = device_of(options.device), _DTYPES[options.dtype]
        if (width := options.random_width) is not None:
            decoder = random_decoder(CodecConfig().scaled(width), device=device, dtype=dtype)
        else:
            decoder = load_decoder(weights_folder(self.context), device, dtype)
        self._sample_rate = decoder.config.sample_rate
        self._streams = StreamingDecoder(
            decoder,
            streams=options.streams,
            max_frames=min(_AT_ONCE, max(options.first_chunk, options.max_chunk)),
            max_batch=options.max_batch,
        )

    def open(self, first: CodeFrames) -> int:
        return self._streams.open()

    def discard(self, state: int) -> None:
        self._streams.close(state)

    def decode(self, batch: Sequence[DecodeJob]) -> Sequence[Sequence[AudioChunk]]:
        steps = [(job.state, torch.from_numpy(_codes(job.items))) for job in batch]
        results = self._streams.step([step for step in steps if step[1].shape[1]])
        samples = iter(results)
        waves = [next(samples).numpy() if codes.shape[1] else np.zeros(0, np.float32) for _, codes in steps]
        return [self._chunks(job, wave) for job, wave in zip(batch, waves, strict=True)]

    def _chunks(self, job: DecodeJob, wave: np.ndarray) -> list[AudioChunk]:
        usages = [item.usage for item in job.items if item.usage is not None]
        reasons = [item.finish_reason for item in job.items if item.finish_reason is not None]
        if not (len(wave) or usages or reasons):
            return []
        usage = Usage(sum(u.input_tokens for u in usages), sum(u.output_tokens for u in usages)) if usages else None
        return [
            AudioChunk(
                samples=wave,
                sample_rate=self._sample_rate,
                usage=usage,
                finish_reason=reasons[-1] if reasons else None,
            )
        ]


def _codes(items: Sequence[CodeFrames]) -> np.ndarray:
    """All new frames of a stream, int64 ``(codebooks, frames)``; a copy."""
    if not items:
        return np.zeros((0, 0), np.int64)
    return np.concatenate([np.asarray(item.codes, np.int64) for item in items], axis=1)
