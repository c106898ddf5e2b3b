"""The stages at both ends of the autoregressive engine: a request to pieces, pieces to frames."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch

from omni import AR, AROptions, BadRequest, Preprocess, PreprocessOptions, Speech, SpeechRequest, Usage
from omni.audio import split_text
from omni.codecs import device_of
from omni.engines.base import Prompt, SamplingParams, StepOutput
from omni.engines.torch import LayerStack
from qwen3_tts.messages import CodeFrames, Part, Piece, Ready, Sampling
from qwen3_tts.model import Talker
from qwen3_tts.origin import RandomModel, describe_stage, weights_folder
from qwen3_tts.params import DesignParams, SpeechParams
from qwen3_tts.prompts import PromptBuilder, Reference, frames_for
from qwen3_tts.reference import load_reference
from qwen3_tts.source import TalkerSource
from qwen3_tts.voices import AUTO, by_code

_DESIGN_TOKENS = 1600
"""A described voice is another one each time it is described, so its text is spoken in one go: so many tokens take
about ten minutes, which is what the model was made for."""


class PrepareOptions(PreprocessOptions):
    random: RandomModel | None = None


class Prepare(Preprocess[SpeechRequest, Part]):
    """Checks a request against the kind of model at hand, decodes the reference and cuts the text into pieces."""

    Options = PrepareOptions
    options: PrepareOptions

    def load(self) -> None:
        description = describe_stage(self.context, self.options.random)
        self._config, self._generation = description.config, description.generation
        self._tokenizer = description.tokenizer
        self._languages = by_code(self._config.talker.languages)
        task = self.context.recipe.task
        assert isinstance(task, Speech)
        self._default_speaker = next((voice.id for voice in task.voices), "")

    def process(self, item: SpeechRequest) -> Iterator[Part]:
        kind = self._config.kind
        params = self._params(item)
        speaker = self._speaker(item)
        language = self._language(item.language)
        if item.instructions is not None and not self._config.takes_instructions:
            raise BadRequest("this model takes no 'instructions'", param="instructions", code="unsupported_parameter")
        sampling = self._sampling(params)
        reference_text = ""
        if kind == "base":
            reference = item.references[0]
            reference_text = reference.text.strip()
            audio = load_reference(reference.audio, param="references[0].audio")
            yield Part(audio=audio, with_codes=bool(reference_text))
        whole = params.non_streaming_mode
        for place, text in enumerate(self._pieces(item.text, params)):
            yield Part(
                piece=Piece(
                    text=text,
                    sampling=sampling,
                    whole=whole if whole is not None else kind != "base",
                    speaker=speaker,
                    language=language,
                    instructions=item.instructions or None,
                    cloned=kind == "base",
                    reference_text=reference_text,
                    max_new_tokens=params.max_new_tokens,
                    seed=None if item.seed is None else item.seed + place,
                )
            )

    def _params(self, item: SpeechRequest) -> DesignParams:
        """A server checks requests by the same model; others may not."""
        model = DesignParams if self._config.kind == "voice_design" else SpeechParams
        if unknown := set(item.params) - set(model.model_fields):
            name = min(unknown)
            raise BadRequest(f"this model takes no {name!r}", param=name, code="unsupported_parameter")
        return model(**item.params)

    def _speaker(self, item: SpeechRequest) -> str | None:
        """The name of the voice, for models that have some; checks that others get what they need instead."""
        kind = self._config.kind
        if kind != "custom_voice" and item.voice:
            raise BadRequest("this model has no voices of its own", param="voice", code="voice_not_found")
        if kind != "base" and item.references:
            raise BadRequest("this model clones no voices", param="references", code="unsupported_parameter")
        if kind == "base":
            if not item.references:
                raise BadRequest(
                    "this model speaks with the voice of a reference, which is missing",
                    param="references",
                    code="missing_required_parameter",
                )
            if len(item.references) > 1:
                raise BadRequest("this model takes one reference voice", param="references")
        if kind != "custom_voice":
            return None
        name = item.voice.lower() or self._default_speaker
        if name not in self._config.talker.speakers:
            known = ", ".join(self._config.talker.speakers)
            raise BadRequest(
                f"this model has no voice {item.voice!r}; it has: {known}", param="voice", code="voice_not_found"
            )
        return name

    def _language(self, code: str | None) -> str | None:
        if code is None or code == AUTO:
            return None
        name = self._languages.get(code)
        if name is None:
            known = ", ".join((AUTO, *self._languages))
            raise BadRequest(
                f"the model does not know the language {code!r}; it knows: {known}",
                param="language",
                code="unsupported_language",
            )
        return name

    def _sampling(self, params: DesignParams) -> Sampling:
        """The request's own numbers, else the checkpoint's; greedy is greedy in every codebook."""
        default = self._generation
        numbers: dict[str, Any] = {}
        for name in Sampling.__struct_fields__:
            given = getattr(params, name)
            numbers[name] = getattr(default, name) if given is None else given
        if not default.do_sample and params.temperature is None:
            numbers["temperature"] = 0.0
        if not default.subtalker_dosample and params.subtalker_temperature is None:
            numbers["subtalker_temperature"] = 0.0
        for name, greedy in (("temperature", 0), ("top_k", 1)):
            other = f"subtalker_{name}"
            if getattr(params, name) == greedy:
                if getattr(params, other) not in (None, greedy):
                    raise BadRequest(
                        f"{name!r} {greedy} is greedy in every codebook: leave {other!r} out, or set it to {greedy}",
                        param=other,
                    )
                numbers[other] = greedy
        return Sampling(**numbers)

    def _pieces(self, text: str, params: DesignParams) -> list[str]:
        if isinstance(params, SpeechParams):
            return split_text(text, params.chunk_length)
        tokens = len(self._tokenizer.encode(text))
        if tokens > _DESIGN_TOKENS:
            raise BadRequest(
                f"a described voice speaks a text in one go, which may have {_DESIGN_TOKENS} tokens; this one has "
                f"{tokens}",
                param="input",
                code="string_above_max_length",
            )
        return [text]


class TalkerOptions(AROptions):
    """``device``: a torch device, ``auto`` takes CUDA where there is one. ``dtype``: ``auto`` is bfloat16 on CUDA and
    float32 elsewhere."""

    device: str = "auto"
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    random: RandomModel | None = None


@dataclass
class Speaking:
    """One piece's generation. ``after``: silent frames that its first ones come after; None when those are out."""

    ready: Ready
    after: np.ndarray | None


class TalkerStage(AR[Ready, CodeFrames]):
    """Speaks each piece of a request by itself, one after the other or some at once."""

    Options = TalkerOptions
    options: TalkerOptions

    def load(self) -> None:
        options, random = self.options, self.options.random
        description = describe_stage(self.context, random)
        self._config, self._generation = description.config, description.generation
        self._builder = PromptBuilder(description.config, description.tokenizer)
        device = device_of(options.device)
        dtype = ("bfloat16" if device.type == "cuda" else "float32") if options.dtype == "auto" else options.dtype
        if random is not None:
            self._source = TalkerSource(
                device=str(device), dtype=dtype, size=random.size, kind=random.kind, seed=random.seed
            )
        else:
            self._source = TalkerSource(device=str(device), dtype=dtype, folder=str(weights_folder(self.context)))

    def model(self) -> Talker:
        return self._source.build(LayerStack, device=torch.device(self._source.device))

    def source(self) -> TalkerSource:
        return self._source

    def open(self, item: Ready) -> Speaking:
        codes = np.zeros((self._config.codebooks, 0), np.int32) if item.voice is None else item.voice.codes
        return Speaking(item, codes)

    def prompt(self, state: Speaking) -> tuple[Prompt, SamplingParams]:
        piece, voice = state.ready.piece, state.ready.voice
        reference = None
        if voice is not None and piece.reference_text:
            reference = Reference(piece.reference_text, voice.codes)
        wording = self._builder.build(
            piece.text,
            whole=piece.whole,
            language=piece.language,
            speaker=piece.speaker,
            vector=None if voice is None else voice.vector,
            instructions=piece.instructions,
            reference=reference,
        )
        limit = piece.max_new_tokens
        if limit is None:
            room = self._config.talker.max_position_embeddings - len(wording.prompt.tokens)
            limit = max(1, min(self._generation.max_new_tokens, frames_for(wording.tokens), room))
        return wording.prompt, sampling_params(piece.sampling, limit, piece.seed, wording.tail)

    def output(self, state: Speaking, step: StepOutput) -> Iterable[CodeFrames]:
        if step.codes is not None:
            after, state.after = state.after, None
            yield CodeFrames(codes=step.codes[:, None], after=after, usage=Usage(output_tokens=1))
        if step.finish_reason is not None:
            yield CodeFrames(
                codes=np.zeros((self._config.codebooks, 0), np.int64),
                usage=Usage(input_tokens=step.prompt_tokens),
                finish_reason=step.finish_reason,
            )


def _widest(one: int, other: int) -> int:
    """The smallest ``top_k`` that holds what either of two lets through."""
    return max(one, other) if one and other else 0


def sampling_params(sampling: Sampling, max_new_tokens: int, seed: int | None, tail: list[int]) -> SamplingParams:
    """What the engine is told: bounds of all codebooks, and each kind's own numbers for the model."""
    return SamplingParams(
        max_new_tokens=max_new_tokens,
        temperature=max(sampling.temperature, sampling.subtalker_temperature),
        top_p=sampling.top_p,
        top_k=_widest(sampling.top_k, sampling.subtalker_top_k),
        repetition_penalty=sampling.repetition_penalty,
        seed=seed,
        extra={
            "tail": tail,
            "temperature": sampling.temperature,
            "top_k": sampling.top_k,
            "subtalker_temperature": sampling.subtalker_temperature,
            "subtalker_top_k": sampling.subtalker_top_k,
            "subtalker_top_p": sampling.subtalker_top_p,
        },
    )
