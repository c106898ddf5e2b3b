"""Prompts: a text track and a codec track, whose embeddings are summed at every position."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from omni import BadRequest
from omni.engines.base import Prompt
from qwen3_tts.config import TTSConfig
from qwen3_tts.model import SPEAKER
from qwen3_tts.tokenizer import QwenTokenizer

_FRAMES_PER_TOKEN = 12
_SPARE_FRAMES = 75


def frames_for(tokens: int) -> int:
    """More frames than speaking a text of so many tokens can take: people need about four per token."""
    return _SPARE_FRAMES + _FRAMES_PER_TOKEN * tokens


@dataclass(frozen=True)
class Wording:
    """A prompt, the text tokens that are fed with the coming frames, and how many tokens the text itself has."""

    prompt: Prompt
    tail: list[int]
    tokens: int


@dataclass(frozen=True)
class Reference:
    """A voice to go on from: what is said, and its codes, int64 ``(codebooks, frames)``."""

    text: str
    codes: np.ndarray


class PromptBuilder:
    def __init__(self, config: TTSConfig, tokenizer: QwenTokenizer) -> None:
        self._config = config
        self._tokenizer = tokenizer
        talker = config.talker
        self._silent = talker.vocab_size
        self._vector = talker.vocab_size + 1
        self._assistant = [config.im_start_id, *tokenizer.encode("assistant"), *tokenizer.encode("\n")]
        self._user = [config.im_start_id, *tokenizer.encode("user"), *tokenizer.encode("\n")]
        self._close = [config.im_end_id, *tokenizer.encode("\n")]

    def ids(self, text: str) -> list[int]:
        """Tokens of a text without white space around it, which would merge with what the prompt puts there."""
        return self._tokenizer.encode(text.strip())

    def _prefix(self, language: str | None, speaker: str | None, has_vector: bool) -> list[int]:
        """The codec track before the speech, but for the token that starts it."""
        talker = self._config.talker
        dialect = talker.dialects.get(speaker, False) if speaker is not None else False
        if dialect and language in (None, "chinese"):
            language = dialect
        if language is None:
            head = [talker.codec_nothink_id, talker.codec_think_bos_id, talker.codec_think_eos_id]
        else:
            chosen = talker.languages[language]
            head = [talker.codec_think_id, talker.codec_think_bos_id, chosen, talker.codec_think_eos_id]
        voice = [self._vector] if has_vector else [] if speaker is None else [talker.speakers[speaker]]
        return [*head, *voice, talker.codec_pad_id]

    def build(
        self,
        text: str,
        *,
        whole: bool,
        language: str | None = None,
        speaker: str | None = None,
        vector: np.ndarray | None = None,
        instructions: str | None = None,
        reference: Reference | None = None,
    ) -> Wording:
        """``language`` and ``speaker`` as in the configuration; ``vector`` float ``(hidden_size,)`` in place of a
        speaker. ``whole``: the text stands in the prompt; otherwise a token is fed with each frame. With ``reference``
        the speech goes on after its frames.

        Raises:
            BadRequest: a text holds nothing.
        """
        config, talker = self._config, self._config.talker
        pad, bos, eos = config.tts_pad_id, config.tts_bos_id, config.tts_eos_id
        words = self.ids(text)
        if not words:
            raise BadRequest("the text holds nothing to speak", param="input")
        tracks = _Tracks(config.codebooks)
        if instructions is not None:
            tracks.add([*self._user, *self.ids(instructions), *self._close], self._silent)
        tracks.add(self._assistant, self._silent)
        prefix = self._prefix(language, speaker, vector is not None)
        tracks.zip([pad] * (len(prefix) - 1) + [bos], prefix)
        frames = np.zeros((config.codebooks, 0), np.int64) if reference is None else self._frames(reference)
        said = words if reference is None else [*self.ids(reference.text), *words]
        tail: list[int] = []
        if whole:
            tracks.add([*said, eos], talker.codec_pad_id)
            tracks.add([pad], talker.codec_bos_id)
            tracks.frames([pad] * frames.shape[1], frames)
        else:
            # The text runs along with the start of the codec track, padded where it is shorter.
            said = [*said, eos]
            length = 1 + frames.shape[1]
            track, tail = said[:length], said[length:]
            track += [pad] * (length - len(track))
            tracks.add(track[:1], talker.codec_bos_id)
            tracks.frames(track[1:], frames)
        embeds = {} if vector is None else {SPEAKER: np.asarray(vector, np.float32)}
        return Wording(tracks.prompt(embeds), tail, len(words))

    def _frames(self, reference: Reference) -> np.ndarray:
        """Raises :class:`BadRequest` for codes that are not ``(codebooks, frames)``, or for a text without words."""
        if not self.ids(reference.text):
            raise BadRequest("the text of the reference holds nothing", param="references[0].text")
        codes = np.asarray(reference.codes, np.int64)
        if codes.ndim != 2 or len(codes) != self._config.codebooks:
            raise BadRequest(
                f"codes must have shape ({self._config.codebooks}, frames), not {codes.shape}", param="references"
            )
        return codes


class _Tracks:
    """Columns of the prompt, in the making."""

    def __init__(self, codebooks: int) -> None:
        self._codebooks = codebooks
        self._tokens: list[int] = []
        self._codes: list[np.ndarray] = []

    def add(self, tokens: list[int], code: int) -> None:
        """Text with the same codec token at every position."""
        self.zip(tokens, [code] * len(tokens))

    def zip(self, tokens: list[int], first: list[int]) -> None:
        codes = np.zeros((self._codebooks, len(first)), np.int64)
        codes[0] = first
        self.frames(tokens, codes)

    def frames(self, tokens: list[int], codes: np.ndarray) -> None:
        self._tokens += tokens
        self._codes.append(codes)

    def prompt(self, embeds: dict[str, np.ndarray]) -> Prompt:
        tokens = np.array(self._tokens, np.int64)
        return Prompt(tokens=tokens, codes=np.concatenate(self._codes, axis=1), embeds=dict(embeds))
