"""Reference voices: from an uploaded file to codes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch

from fish_s2pro.codec.config import CodecConfig, RandomWidth
from fish_s2pro.codec.loading import load_encoder, random_encoder, weights_folder
from fish_s2pro.messages import Encoded, Part, Prepared
from omni import Aggregator, BadRequest, Encoder, EncoderOptions, StageFailed
from omni.audio import decode
from omni.codecs import device_of

MAX_REFERENCE_SECONDS = 180.0
"""Longer voices would fill the model's context before any text is spoken."""


def load_reference(data: Any, sample_rate: int, *, param: str = "references") -> np.ndarray:
    """An encoded audio file (bytes or uint8 array) as mono float32 ``(samples,)`` at the codec's rate: channels are
    averaged, loudness stays.

    Raises:
        BadRequest: not an audio file, damaged, empty or longer than :data:`MAX_REFERENCE_SECONDS`.
    """
    return decode(data, sample_rate, mono=True, max_seconds=MAX_REFERENCE_SECONDS, param=param)


class ReferenceOptions(EncoderOptions):
    """``device``: a torch device, ``auto`` takes CUDA where there is one. Encoding is float32 on every device.
    ``random_width``: random weights of this fraction of the published widths, in place of a checkpoint."""

    device: str = "auto"
    random_width: RandomWidth = None
    cache_mb: float = 64.0


class ReferenceEncoder(Encoder[Part, Part]):
    """Turns ``audio`` into ``codes``; other parts pass.

    Voices of a batch are encoded one by one: each fills the machine on its own, and its codes then depend on nothing
    else.
    """

    Options = ReferenceOptions
    options: ReferenceOptions

    def load(self) -> None:
        device = device_of(self.options.device)
        if (width := self.options.random_width) is not None:
            self._encoder = random_encoder(CodecConfig().scaled(width), device=device)
        else:
            self._encoder = load_encoder(weights_folder(self.context), device)

    def key(self, item: Part) -> Part | None:
        return None if item.audio is None else item

    def encode(self, batch: Sequence[Part]) -> Sequence[Part]:
        return [self._encode(part) for part in batch]

    def _encode(self, part: Part) -> Part:
        if part.audio is None:
            return part
        if not len(part.audio):
            raise BadRequest("the reference holds no audio", param="references")
        codes = self._encoder.encode(torch.from_numpy(np.array(part.audio, np.float32)))
        return Part(codes=codes.to("cpu", torch.int32).numpy())


class _Collected:
    def __init__(self) -> None:
        self.codes: list[np.ndarray] = []
        self.prepared: Prepared | None = None
        self.complete = False


class CollectReferences(Aggregator[Part, Encoded, _Collected]):
    """Joins the parts of a request. May come after the encoder alone, or after the preprocessing stage as well: then
    the text of a request without references does not wait while others' voices are encoded."""

    def open(self) -> _Collected:
        return _Collected()

    def add(self, state: _Collected, item: Part, source: str) -> Iterable[Encoded]:
        if item.codes is not None:
            state.codes.append(item.codes)
        if item.prepared is not None:
            state.prepared = item.prepared
        prepared = state.prepared
        if state.complete or prepared is None or len(state.codes) < len(prepared.reference_texts):
            return ()
        state.complete = True
        return (Encoded(prepared=prepared, codes=state.codes),)

    def result(self, state: _Collected) -> Iterable[Encoded]:
        if not state.complete:
            raise StageFailed("a request ended before its text and all of its references had arrived")
        return ()
