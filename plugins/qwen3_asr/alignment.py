"""The stage of the forced aligner: text and sound to times."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Annotated, ClassVar, TypeGuard

from pydantic import Field

from omni import BadRequest, Encoder, EncoderOptions, Joined
from qwen3_asr.aligner import prompt_ids
from qwen3_asr.languages import ALIGNED, no_times
from qwen3_asr.loader import load_aligner, load_encoder, open_aligner, random_aligner, random_encoder
from qwen3_asr.messages import Aligned, Ending
from qwen3_asr.sizes import SIZES, SizeName
from qwen3_asr.stages import BATCH_SECONDS, Dtype, device_of, dtype_of, weights_folder
from qwen3_asr.times import timed
from qwen3_asr.transcript import SpanText
from qwen3_asr.units import JAPANESE_PIP, nagisa, no_words, split_units

log = logging.getLogger("qwen3_asr")

SOUNDS, TEXTS = "audio", "texts"
"""Stages whose items are joined: spans with their sound, and what is said in them."""


class AlignerOptions(EncoderOptions):
    """``device``, ``dtype`` and ``max_cost`` as of the encoder. The weights are the aligner's own:
    ``--set aligner.weights=…``; ``random`` and ``random_seed`` as of the encoder."""

    max_batch: Annotated[int, Field(ge=1, le=4096)] = 8
    max_cost: Annotated[float, Field(gt=0)] | None = BATCH_SECONDS
    device: str = "auto"
    dtype: Dtype = "auto"
    random: SizeName | None = None
    random_seed: Annotated[int, Field(ge=0)] = 0


class AlignerStage(Encoder[Joined, Aligned]):
    """Takes the spans joined with what is said in them; where no times are asked for, it gives none."""

    Options: ClassVar[type[AlignerOptions]] = AlignerOptions
    options: AlignerOptions

    def load(self) -> None:
        options = self.options
        device = device_of(options.device)
        dtype = dtype_of(options.dtype, device)
        if options.random is not None:
            self._config, self._tokenizer = SIZES[options.random].build_aligner()
            self._model = random_aligner(self._config, options.random_seed, device=device, dtype=dtype)
            self._encoder = random_encoder(self._config.audio, options.random_seed, device=device, dtype=dtype)
        else:
            folder = weights_folder(self.context)
            self._config, self._tokenizer = open_aligner(folder)
            self._model, _ = load_aligner(folder, device=device, dtype=dtype)
            self._encoder = load_encoder(folder, self._config.audio, device=device, dtype=dtype)
        if nagisa() is None:
            log.warning("nagisa is not installed: Japanese has times of segments only (%s)", JAPANESE_PIP)

    def cost(self, item: Joined) -> float:
        """Seconds to be aligned; what nobody asked for costs next to nothing."""
        ending: Ending = item.parts[TEXTS].ending
        return max(0.01, ending.seconds) if ending.timed else 0.01

    def key(self, item: Joined) -> None:
        return None

    def encode(self, batch: Sequence[Joined]) -> Sequence[Aligned | BadRequest]:
        results = [self._untimed(item) for item in batch]
        wanted = [(item, result) for item, result in zip(batch, results, strict=True) if _has_units(result)]
        if not wanted:
            return results
        config = self._config
        audio = self._encoder.encode([item.parts[SOUNDS].mel for item, _ in wanted])
        prompts = [
            prompt_ids(self._tokenizer, config.timestamp_id, [unit.word for unit in result.units], len(embeds))
            for (_, result), embeds in zip(wanted, audio, strict=True)
        ]
        for (_, result), logits in zip(wanted, self._model.timestamp_logits(prompts, audio), strict=True):
            stamps = (logits.argmax(-1).double() * config.timestamp_ms).tolist()
            result.units = timed(result.units, [int(stamp) for stamp in stamps])
        return results

    @staticmethod
    def _untimed(item: Joined) -> Aligned | BadRequest:
        """The units of a span, without times yet: none in a language that the aligner does not know, of which there are
        no words to be had either."""
        text: SpanText = item.parts[TEXTS]
        ending, language = text.ending, text.language
        unknown = language is not None and language not in ALIGNED
        if ending.words and ending.text and language is not None:
            if unknown:
                return no_times(language, heard=True)
            if language == "ja" and nagisa() is None:
                return no_words()
        units = split_units(ending.text, language) if ending.timed and not unknown else []
        return Aligned(position=text.position, units=units, ending=ending, asked=ending.timed)


def _has_units(result: Aligned | BadRequest) -> TypeGuard[Aligned]:
    return isinstance(result, Aligned) and bool(result.units)
