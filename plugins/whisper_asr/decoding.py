"""One window of 30 s to tokens: bounded, the same every time, and without the loops that Whisper falls into.

Where nobody speaks, or where somebody says the same word over and over, Whisper can repeat a phrase until its tokens
run out, and it is sure of every repetition. Whisper's own remedy is to sample at rising temperatures, which
CTranslate2 cannot repeat (it seeds a thread once). Here a text that repeats itself is written a second time with a
penalty on repetition: one that was heard stays likely, one that was invented does not.
"""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Any

_ALL = 224  # tokens of a window: half of the decoder's positions, as Whisper has it
_REPEATS = 2.4  # ratio of compression from which on a text repeats itself: Whisper's own limit
_PENALTY = 1.1

# The second writing's mean log probability minus the probability of no speech. Measured: -0.7 to -1.2 where somebody
# repeats a word, also in noise and at 1 % of the level; -1.8 to -2.4 in modulated tones and buzzes.
_INVENTED = -1.5

# Above this probability of no speech a text is first written only as far as is needed to see whether it repeats itself.
_DOUBT = 0.3


def usual_tokens(seconds: float) -> int:
    """More than anybody says in ``seconds`` of English at twice the normal speed; a text that needs more gets them."""
    return min(_ALL, 32 + math.ceil(8 * seconds))


@dataclass(frozen=True)
class Attempt:
    """``result`` is CTranslate2's. ``whole``: the text ended, or it used up what a window may have and has times in
    it, from the last of which the library goes on."""

    limit: int
    result: Any
    logprob: float
    temperature: float
    ratio: float
    whole: bool

    @property
    def repeats(self) -> bool:
        return self.ratio > _REPEATS

    def told(self) -> tuple[Any, float, float, float]:
        return self.result, self.logprob, self.temperature, self.ratio


@dataclass(frozen=True)
class NoSpeech:
    """Stands for a result that the library leaves out, whatever its limits."""

    no_speech_prob: float = math.inf
    sequences_ids: tuple[tuple[int, ...], ...] = ((),)


class Window:
    """The decoder at work on one window; ``options`` are the library's."""

    def __init__(self, model: Any, encoded: Any, prompt: list[int], tokenizer: Any, options: Any) -> None:
        self._model, self._encoded, self._prompt = model, encoded, prompt
        self._tokenizer, self._options = tokenizer, options

    def write(self) -> tuple[Any, float, float, float]:
        """``(result, mean log probability, temperature, compression ratio)``, as the library wants it."""
        no_speech = float(self._attempt(1).result.no_speech_prob)
        usual = self._options.max_new_tokens or _ALL
        limits = sorted({usual // 4 if no_speech >= _DOUBT else usual, usual, _ALL})
        first = self._first_enough(limits)
        if not first.repeats or (first.whole and no_speech < _DOUBT):
            return first.told()
        second = self._first_enough(limits, _PENALTY)
        if second.logprob - no_speech < _INVENTED:
            return NoSpeech(), -math.inf, first.temperature, first.ratio
        if not first.whole and not second.whole:
            # Neither ends where a loop would have been told from speech: somebody says the same for long.
            first = self._attempt(usual)
            second = second if first.whole else self._attempt(_ALL, _PENALTY)
        return (first if first.whole else second).told()

    def _first_enough(self, limits: list[int], penalty: float = 1.0) -> Attempt:
        """The attempt with the first of ``limits`` that is whole, or that repeats itself."""
        *short, longest = limits
        for limit in short:
            attempt = self._attempt(limit, penalty)
            if attempt.whole or attempt.repeats:
                return attempt
        return self._attempt(longest, penalty)

    def _attempt(self, limit: int, penalty: float = 1.0) -> Attempt:
        options, temperature = self._options, self._options.temperatures[0]
        search = {"beam_size": options.beam_size, "patience": options.patience}
        if temperature > 0 and penalty == 1.0:
            search = {
                "beam_size": 1,
                "num_hypotheses": options.best_of,
                "sampling_topk": 0,
                "sampling_temperature": temperature,
            }
        [result] = self._model.model.generate(
            self._encoded,
            [self._prompt],
            # CTranslate2 gives half of this to the text, and all of it to prompt and text.
            max_length=min(self._model.max_length, max(2 * limit, len(self._prompt) + limit)),
            length_penalty=options.length_penalty,
            repetition_penalty=penalty,
            return_scores=True,
            return_no_speech_prob=True,
            suppress_blank=options.suppress_blank,
            suppress_tokens=options.suppress_tokens,
            max_initial_timestamp_index=round(options.max_initial_timestamp / self._model.time_precision),
            **search,
        )
        tokens = result.sequences_ids[0]
        count = len(tokens)
        text = self._tokenizer.decode(tokens).strip().encode()
        return Attempt(
            limit,
            result,
            result.scores[0] * count**options.length_penalty / (count + 1),
            temperature,
            len(text) / len(zlib.compress(text)),
            count < limit or (limit == _ALL and self._has_times(tokens)),
        )

    def _has_times(self, tokens: list[int]) -> bool:
        """Whether a segment ends and another begins."""
        first = self._tokenizer.timestamp_begin
        return any(a >= first and b >= first for a, b in pairwise(tokens))


def bounded(library: type[Any]) -> type[Any]:
    """The library's model class with the decoding of this module."""

    class BoundedModel(library):  # type: ignore[misc]
        def generate_with_fallback(
            self, encoder_output: Any, prompt: list[int], tokenizer: Any, options: Any
        ) -> tuple[Any, float, float, float]:
            return Window(self, encoder_output, prompt, tokenizer, options).write()

        def add_word_timestamps(self, segments: list[list[dict[str, Any]]], *rest: Any, **more: Any) -> Any:
            """The library leaves out segments without length, which those are whose words it finds no time for."""
            last = super().add_word_timestamps(segments, *rest, **more)
            for segment in chain.from_iterable(segments):
                segment["end"] = max(segment["end"], segment["start"] + self.time_precision)
            return last

    return BoundedModel
