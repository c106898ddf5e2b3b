"""Text to token ids and back, from ``vocab.json``, ``merges.txt`` and ``tokenizer_config.json``.

Control tokens are named by the prompt builder; what a client writes is always text.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

from omni.errors import WeightsError

IM_START, IM_END, END_OF_TEXT = "<|im_start|>", "<|im_end|>", "<|endoftext|>"
AUDIO_START, AUDIO_PAD, AUDIO_END = "<|audio_start|>", "<|audio_pad|>", "<|audio_end|>"
TEXT_TAG = "<asr_text>"
TIMESTAMP = "<timestamp>"

_CONTROL = (IM_START, IM_END, END_OF_TEXT, AUDIO_START, AUDIO_PAD, AUDIO_END)

# How text falls into pieces before byte pairs are merged: the split that Qwen2's and Qwen3's vocabularies came from.
_PIECES = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _byte_alphabet() -> dict[str, int]:
    """The character that stands for each byte in a byte-level vocabulary: printable Latin-1 for itself, the others
    from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


class AsrTokenizer:
    """Byte-level BPE with NFC before it. ``size``: all ids are below it; ``audio_pad``: the id of an audio position."""

    def __init__(self, vocabulary: dict[str, int], merges: Sequence[tuple[str, str]], added: dict[int, Any]) -> None:
        """``added``: the entries of ``added_tokens_decoder`` by id, each with ``content`` and ``special``.

        Raises:
            WeightsError: vocabulary and merges do not fit together, or a control token is missing.
        """
        try:
            bpe = models.BPE(vocab=vocabulary, merges=list(merges))
        except Exception as error:
            # tokenizers raises bare Exception for any definition that it does not understand.
            raise WeightsError(f"vocab.json and merges.txt do not make a tokenizer: {error}") from error
        self._bpe = Tokenizer(bpe)
        self._bpe.normalizer = normalizers.NFC()
        self._bpe.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(_PIECES), "isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
        alphabet = _byte_alphabet()
        self._bytes = {i: bytes(alphabet[c] for c in token) for token, i in vocabulary.items()}
        self._added = {str(token["content"]): i for i, token in added.items()}
        self._bytes |= {i: b"" if token["special"] else token["content"].encode() for i, token in added.items()}
        missing = [name for name in _CONTROL if name not in self._added]
        if missing:
            raise WeightsError(f"tokenizer_config.json has no token {', '.join(missing)}")
        longest_first = sorted(self._added, key=len, reverse=True)
        self._control = re.compile("(" + "|".join(map(re.escape, longest_first)) + ")")
        self.audio_pad = self._added[AUDIO_PAD]
        self.size = max(self._bytes) + 1

    @classmethod
    def load(cls, folder: Path) -> AsrTokenizer:
        """Raises :class:`WeightsError` naming a file that is missing or broken."""
        try:
            file = folder / "vocab.json"
            vocabulary = {str(token): int(i) for token, i in json.loads(file.read_text("utf-8")).items()}
            file = folder / "merges.txt"
            merges = [_merge(line) for line in file.read_text("utf-8").split("\n") if line and line[:8] != "#version"]
            file = folder / "tokenizer_config.json"
            listed = json.loads(file.read_text("utf-8"))["added_tokens_decoder"]
            added = {
                int(i): {"content": str(token["content"]), "special": bool(token["special"])}
                for i, token in listed.items()
            }
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise WeightsError(f"cannot read {file}: {type(error).__name__}: {error}") from error
        try:
            return cls(vocabulary, merges, added)
        except KeyError as error:
            raise WeightsError(f"{folder / 'vocab.json'} is not a byte-level vocabulary: {error}") from error

    def id(self, name: str) -> int:
        """Raises :class:`WeightsError` when there is no token of this name."""
        found = self._added.get(name)
        if found is None:
            raise WeightsError(f"tokenizer_config.json has no token {name}")
        return found

    def __contains__(self, name: str) -> bool:
        return name in self._added

    def encode(self, text: str) -> list[int]:
        """Ids of ``text`` as it is; control tokens never come out."""
        return list(self._bpe.encode(text, add_special_tokens=False).ids)

    def encode_marked(self, text: str) -> list[int]:
        """Ids of text in which the names of control tokens mean these tokens: what a model wrote, never a client."""
        ids: list[int] = []
        for part in self._control.split(text):
            known = self._added.get(part)
            if known is not None:
                ids.append(known)
            elif part:
                ids += self.encode(part)
        return ids

    def bytes_of(self, token: int) -> bytes:
        """What a token stands for; nothing for special tokens and for ids that have no token."""
        return self._bytes.get(token, b"")

    def decode(self, tokens: Iterable[int]) -> str:
        """Text without special tokens; bytes that are no UTF-8 become U+FFFD."""
        return b"".join(map(self.bytes_of, tokens)).decode("utf-8", "replace")


class TextDecoder:
    """Tokens to text as they come: never half a character; joined, what :meth:`AsrTokenizer.decode` gives."""

    def __init__(self, tokenizer: AsrTokenizer) -> None:
        self._tokenizer = tokenizer
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        return self._utf8.decode(self._tokenizer.bytes_of(token))

    def finish(self) -> str:
        """What is left: the bytes of a character that was never completed, as U+FFFD."""
        return self._utf8.decode(b"", True)


def bytes_only(*more: str) -> AsrTokenizer:
    """One token per byte, then the control tokens, and ``more`` of them: for random weights."""
    names = (*_CONTROL, TEXT_TAG, *more)
    return AsrTokenizer(
        _byte_alphabet(), [], {256 + i: {"content": name, "special": name != TEXT_TAG} for i, name in enumerate(names)}
    )


def _merge(line: str) -> tuple[str, str]:
    first, second = line.split(" ")
    return first, second
