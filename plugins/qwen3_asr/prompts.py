"""The prompt: context, audio, and how the answer begins."""

from __future__ import annotations

from qwen3_asr.languages import NAMES
from qwen3_asr.tokenizer import AUDIO_END, AUDIO_PAD, AUDIO_START, IM_END, IM_START, TEXT_TAG, AsrTokenizer

_BROKEN = "�"


class PromptBuilder:
    """Makes token ids; what a client writes never becomes a control token."""

    def __init__(self, tokenizer: AsrTokenizer) -> None:
        self._tokenizer = tokenizer
        names = (IM_START, IM_END, AUDIO_START, AUDIO_PAD, AUDIO_END)
        self._start, self._end, self._audio_start, self._pad, self._audio_end = map(tokenizer.id, names)

    def build(self, audio: int, *, context: str = "", language: str | None = None, written: str = "") -> list[int]:
        """Ids of a prompt with ``audio`` audio positions.

        ``context`` is text that belongs to the audio: a glossary, names, what came before. With ``language`` (ISO code)
        the model writes in it, else it names the language first. ``written``: the beginning of its answer.
        """
        encode = self._tokenizer.encode
        answer = "assistant\n" + (f"language {NAMES[language]}{TEXT_TAG}" if language is not None else "") + written
        return [
            *(self._start, *encode("system\n" + context), self._end, *encode("\n")),
            *(self._start, *encode("user\n"), self._audio_start, *[self._pad] * audio, self._audio_end),
            *(self._end, *encode("\n"), self._start, *self._tokenizer.encode_marked(answer)),
        ]


def kept(tokenizer: AsrTokenizer, written: str, rollback: int, *, finishing: bool) -> str:
    """How the next answer begins: what was written but for the last ``rollback`` tokens, and for half a character. The
    last turn keeps at least a token, whole or not, as in the reference."""
    tokens = tokenizer.encode_marked(written)
    if finishing:
        return tokenizer.decode(tokens[: max(1, len(tokens) - rollback)])
    for end in range(len(tokens) - rollback, 0, -1):
        found = tokenizer.decode(tokens[:end])
        if _BROKEN not in found:
            return found
    return ""
