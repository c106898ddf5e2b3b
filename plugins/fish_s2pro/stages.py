"""The stages at both ends of the autoregressive engine: a request to parts, parts to frames."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import Field

from fish_s2pro.codec.config import CodecConfig, read_config
from fish_s2pro.codec.loading import weights_folder
from fish_s2pro.messages import CodeFrames, Encoded, Part, Prepared
from fish_s2pro.model import DualAR
from fish_s2pro.params import SpeechParams
from fish_s2pro.prompts import Conversation, Reference, batch_texts
from fish_s2pro.reference import load_reference
from fish_s2pro.sizes import SizeName
from fish_s2pro.source import DualARSource
from omni import AR, AROptions, BadRequest, Preprocess, SpeechRequest, Usage
from omni.codecs import device_of
from omni.engines.base import Prompt, SamplingParams, StepOutput
from omni.engines.torch import LayerStack

_SPEECH_ROOM = 2048
"""Positions that a prompt leaves to its speech where the request sets no limit, as in the reference."""


class Prepare(Preprocess[SpeechRequest, Part]):
    """Decodes the reference voices to the codec's rate and cuts the text into batches."""

    def load(self) -> None:
        folder = self.context.weights
        config = CodecConfig() if folder is None else read_config(folder)
        self._sample_rate = config.sample_rate

    def process(self, item: SpeechRequest) -> Iterator[Part]:
        params = SpeechParams(**item.params)
        for place, reference in enumerate(item.references):
            if not reference.text.strip():
                raise BadRequest(
                    "a reference voice needs the text that is spoken in it", param=f"references[{place}].text"
                )
            audio = load_reference(reference.audio, self._sample_rate, param=f"references[{place}].audio")
            yield Part(audio=audio)
        yield Part(
            prepared=Prepared(
                batches=batch_texts(item.text, params.chunk_length),
                reference_texts=[reference.text for reference in item.references],
                temperature=params.temperature,
                top_p=params.top_p,
                top_k=params.top_k,
                seed=item.seed,
                max_new_tokens=params.max_new_tokens,
            )
        )


class DualAROptions(AROptions):
    """``device``: a torch device, ``auto`` takes CUDA where there is one. ``dtype``: ``auto`` is bfloat16 on CUDA and
    float32 elsewhere. ``random``: random weights of a size instead of a checkpoint, drawn with ``random_seed``."""

    device: str = "auto"
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    random: SizeName | None = None
    random_seed: Annotated[int, Field(ge=0)] = 0


@dataclass
class Speaking:
    """One request's generation: its conversation so far, the batches that are left, the frames of the current one."""

    prepared: Prepared
    conversation: Conversation
    next_batch: int = 0
    frames: list[np.ndarray] = field(default_factory=list)
    prompt_tokens: int = 0


class DualARStage(AR[Encoded, CodeFrames]):
    """Speaks the batches of a request one after the other, each with the earlier ones as context."""

    Options = DualAROptions
    options: DualAROptions

    def load(self) -> None:
        options = self.options
        device = device_of(options.device)
        on_cuda = device.type == "cuda"
        self._source = DualARSource(
            device=str(device),
            dtype=("bfloat16" if on_cuda else "float32") if options.dtype == "auto" else options.dtype,
            folder=None if options.random is not None else str(weights_folder(self.context)),
            random=options.random,
            random_seed=options.random_seed,
        )
        self._config, self._tokenizer = self._source.open()

    def model(self) -> DualAR:
        return self._source.build(LayerStack, device=torch.device(self._source.device))

    def source(self) -> DualARSource:
        return self._source

    def open(self, item: Encoded) -> Speaking:
        references = [
            Reference(text, codes.astype(np.int64))
            for text, codes in zip(item.prepared.reference_texts, item.codes, strict=True)
        ]
        conversation = Conversation(self._tokenizer, self._config.codebooks, references)
        self._check_room(conversation, item.prepared)
        return Speaking(item.prepared, conversation)

    @property
    def _context(self) -> int:
        return self.max_tokens or self._config.text.max_seq_len

    def _room(self, prepared: Prepared) -> int:
        """Positions that a prompt may take."""
        return self._context - (prepared.max_new_tokens or min(_SPEECH_ROOM, self._context // 2))

    def _check_room(self, conversation: Conversation, prepared: Prepared) -> None:
        """Every batch must fit before the first is spoken: a client that hears a beginning is to hear the end."""
        needed = max(conversation.least(text) for text in prepared.batches)
        if needed <= self._room(prepared):
            return
        if prepared.max_new_tokens and needed < self._context:
            raise BadRequest(
                f"'max_new_tokens' is {prepared.max_new_tokens}; references and text take {needed} of the "
                f"{self._context} positions of a context, so it can be {self._context - needed} at most",
                param="max_new_tokens",
            )
        raise BadRequest(
            f"references and text take {needed} positions, the limit is {self._room(prepared)}"
            + ("" if len(prepared.batches) == 1 else "; a smaller 'chunk_length' makes shorter batches"),
            param="references" if conversation.least("") > self._room(prepared) else "input",
        )

    def prompt(self, state: Speaking) -> tuple[Prompt, SamplingParams]:
        prepared = state.prepared
        if state.frames:
            state.conversation.answer(np.stack(state.frames, axis=1))
            state.frames = []
        prompt = state.conversation.ask(prepared.batches[state.next_batch], self._room(prepared))
        state.next_batch += 1
        params = SamplingParams(
            max_new_tokens=prepared.max_new_tokens or self._context - len(prompt.tokens),
            temperature=prepared.temperature,
            top_p=prepared.top_p,
            top_k=prepared.top_k,
            seed=None if prepared.seed is None else prepared.seed + state.next_batch - 1,
        )
        return prompt, params

    def output(self, state: Speaking, step: StepOutput) -> Iterable[CodeFrames]:
        if step.codes is not None:
            state.frames.append(step.codes)
            yield CodeFrames(codes=step.codes[:, None], usage=Usage(output_tokens=1))
        if step.finish_reason is not None:
            state.prompt_tokens += step.prompt_tokens
            if not self.follows(state):
                yield CodeFrames(
                    codes=np.zeros((self._config.codebooks, 0), np.int64),
                    usage=Usage(input_tokens=state.prompt_tokens),
                    finish_reason=step.finish_reason,
                )

    def follows(self, state: Speaking) -> bool:
        return state.next_batch < len(state.prepared.batches)
