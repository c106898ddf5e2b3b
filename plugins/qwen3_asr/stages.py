"""The stages that run the recogniser: sound to embeddings, embeddings to text."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field

from omni import (
    AR,
    AROptions,
    BadRequest,
    ConfigError,
    Encoder,
    EncoderOptions,
    Joined,
    StageContext,
    Usage,
    WeightsError,
)
from omni.engines.base import Prompt, SamplingParams, StepOutput
from omni.engines.torch import LayerStack
from qwen3_asr.deltas import Deltas, Raw
from qwen3_asr.languages import NAMES, code_of
from qwen3_asr.loader import load_encoder, random_encoder
from qwen3_asr.messages import Encoded, Ending, Mel, Span, SpanInfo, Spoken
from qwen3_asr.model import AUDIO, AsrModel
from qwen3_asr.prompts import PromptBuilder, kept
from qwen3_asr.sizes import SizeName
from qwen3_asr.source import AsrSource, open_model
from qwen3_asr.tokenizer import TextDecoder

log = logging.getLogger("qwen3_asr")

SPANS, EMBEDS = "spans", "encoder"
"""Stages whose items are joined: spans, and their embeddings."""

Dtype = Literal["auto", "float32", "bfloat16", "float16"]
BATCH_SECONDS = 200.0
"""Of audio that an encoder hears in one call, which nothing interrupts: one long span, or many short clips."""
_TOKENS_BESIDE = 64
"""Tokens that a span may have beside those that its length allows: its language, a word at either end."""


def device_of(name: str) -> torch.device:
    """A torch device; ``auto`` takes CUDA where there is one. Raises :class:`ConfigError`."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        return torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"device: {error}") from error


def dtype_of(name: Dtype, device: torch.device) -> torch.dtype:
    """``auto`` is bfloat16 on CUDA and float32 elsewhere."""
    if name == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    return {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}[name]


def weights_folder(context: StageContext) -> Path:
    if context.weights is None:
        raise WeightsError("the model needs weights: name a folder with --weights")
    return context.weights


# Sound to embeddings --------------------------------------------------------------------------------------------------


class AudioEncoderOptions(EncoderOptions):
    """``device``: a torch device, ``auto`` takes CUDA where there is one. ``dtype``: ``auto`` is bfloat16 on CUDA and
    float32 elsewhere. ``random``: random weights of a size instead of a checkpoint, drawn with ``random_seed``.
    ``max_cost``: seconds of audio in a batch, which nothing interrupts."""

    max_batch: Annotated[int, Field(ge=1, le=4096)] = 32
    max_cost: Annotated[float, Field(gt=0)] | None = BATCH_SECONDS
    cache_mb: Annotated[float, Field(ge=0)] = 128.0
    device: str = "auto"
    dtype: Dtype = "auto"
    random: SizeName | None = None
    random_seed: Annotated[int, Field(ge=0)] = 0


class AudioEncoderStage(Encoder[Span, Encoded]):
    """Depends on the sound of a span alone, so core's cache knows it again whatever is asked about it."""

    Options: ClassVar[type[AudioEncoderOptions]] = AudioEncoderOptions
    options: AudioEncoderOptions

    def load(self) -> None:
        options = self.options
        device = device_of(options.device)
        dtype = dtype_of(options.dtype, device)
        folder = None if options.random is not None else weights_folder(self.context)
        config, _ = open_model(None if folder is None else str(folder), options.random)
        self._encoder = (
            random_encoder(config.audio, options.random_seed, device=device, dtype=dtype)
            if folder is None
            else load_encoder(folder, config.audio, device=device, dtype=dtype)
        )

    def cost(self, item: Span) -> float:
        return item.seconds

    def key(self, item: Span) -> Mel:
        return Mel(mel=item.mel)

    def encode(self, batch: Sequence[Span]) -> Sequence[Encoded]:
        return [Encoded(embeds=embeds.cpu()) for embeds in self._encoder.encode([span.mel for span in batch])]


# Embeddings to text ---------------------------------------------------------------------------------------------------


class RecogniserOptions(AROptions):
    """``device``, ``dtype``, ``random`` and ``random_seed`` as of the encoder. A span may have ``tokens_per_second`` of
    its length, and a few more: no speech has that many, so a text that comes to it is a model in a loop."""

    parallel_items: Annotated[int, Field(ge=1, le=1024)] = 8
    ahead: Annotated[int, Field(ge=1, le=1_000_000)] = 8192
    device: str = "auto"
    dtype: Dtype = "auto"
    random: SizeName | None = None
    random_seed: Annotated[int, Field(ge=0)] = 0
    tokens_per_second: Annotated[float, Field(gt=0, le=1000)] = 25.0


@dataclass
class Hearing:
    """One span while it is written."""

    span: SpanInfo
    embeds: torch.Tensor
    decoder: TextDecoder
    deltas: Deltas | Raw
    begins: str = ""
    tokens: int = 0

    @property
    def language(self) -> str | None:
        return self.span.language or code_of(self.deltas.language or "")


class Recogniser(AR[Joined, Spoken]):
    """Writes what is heard in each span. Takes the spans joined with their embeddings."""

    Options: ClassVar[type[RecogniserOptions]] = RecogniserOptions
    options: RecogniserOptions

    def load(self) -> None:
        options = self.options
        device = device_of(options.device)
        self._source = AsrSource(
            device=str(device),
            dtype=str(dtype_of(options.dtype, device)).removeprefix("torch."),
            folder=None if options.random is not None else str(weights_folder(self.context)),
            random=options.random,
            random_seed=options.random_seed,
        )
        self._config, self._tokenizer = self._source.open()
        self._prompts = PromptBuilder(self._tokenizer)

    def model(self) -> AsrModel:
        return self._source.build(LayerStack, device=torch.device(self._source.device))

    def source(self) -> AsrSource:
        return self._source

    def open(self, item: Joined) -> Hearing:
        span, encoded = item.parts[SPANS], item.parts[EMBEDS]
        decoder = TextDecoder(self._tokenizer)
        if span.written is None:
            return Hearing(span, encoded.embeds, decoder, Deltas(span.language and NAMES[span.language]))
        begins = kept(self._tokenizer, span.written, span.rollback, finishing=span.finishing)
        return Hearing(span, encoded.embeds, decoder, Raw(begins), begins)

    def prompt(self, state: Hearing) -> tuple[Prompt, SamplingParams]:
        span = state.span
        ids = self._prompts.build(len(state.embeds), context=span.prompt, language=span.language, written=state.begins)
        new = span.max_new_tokens or _TOKENS_BESIDE + int(self.options.tokens_per_second * span.seconds)
        if len(ids) + new > self.max_tokens:
            raise self._too_long(span, len(ids), new)
        return (
            # What comes before the sound, a glossary for example, is computed once for all spans and requests.
            Prompt(
                tokens=np.array(ids, np.int64),
                embeds={AUDIO: state.embeds},
                plain=ids.index(self._config.audio_pad_id),
            ),
            SamplingParams(max_new_tokens=new, temperature=span.temperature, seed=span.seed),
        )

    def _too_long(self, span: SpanInfo, given: int, new: int) -> BadRequest:
        param = "max_new_tokens" if span.max_new_tokens else "prompt" if span.prompt else "file"
        return BadRequest(
            f"{span.seconds:.1f} s of audio with the prompt are {given} tokens and may be {new} more as text; this "
            f"server gives them {self.max_tokens} together",
            param=param,
        )

    def output(self, state: Hearing, step: StepOutput) -> Iterable[Spoken]:
        span, deltas, text = state.span, state.deltas, ""
        if step.codes is not None:
            state.tokens += 1
            text = deltas.push(state.decoder.push(int(step.codes[0])))
        if step.finish_reason is None:
            if text:
                yield Spoken(position=span.position, text=text, language=state.language)
            return
        text += deltas.push(state.decoder.finish()) + deltas.finish()
        cut = step.finish_reason == "length"
        if cut and span.max_new_tokens is None:
            log.warning("%.1f s from %.1f s on: the model wrote without end", span.seconds, span.start)
        yield Spoken(
            position=span.position,
            text=text,
            language=state.language,
            ending=Ending(span.last, span.start, span.seconds, deltas.text, span.timed, span.words, cut),
            usage=Usage(step.prompt_tokens, state.tokens),
        )
