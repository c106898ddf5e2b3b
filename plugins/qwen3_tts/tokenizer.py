"""Text to token ids. Control tokens are named by the prompt builder alone; what a user types is always text."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from omni import WeightsError

_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""How Qwen2's tokenizer cuts text before it merges bytes."""


class QwenTokenizer:
    """Byte-level BPE of ``vocab.json`` and ``merges.txt``.

    The added tokens (``<|im_end|>``, ``<tts_pad>`` …) are not part of it, so text that spells one is cut into ordinary
    pieces. The reference turns it into the control token.
    """

    def __init__(self, model: models.BPE) -> None:
        self._tokenizer = Tokenizer(model)
        self._tokenizer.normalizer = normalizers.NFC()
        self._tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(_WORDS), "isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
        self._tokenizer.decoder = decoders.ByteLevel()
        self.size = max(self._tokenizer.get_vocab().values(), default=-1) + 1

    @classmethod
    def load(cls, folder: Path) -> QwenTokenizer:
        """Raises :class:`WeightsError` if ``vocab.json`` or ``merges.txt`` is missing or broken."""
        files = [folder / "vocab.json", folder / "merges.txt"]
        for file in files:
            if not file.is_file():
                raise WeightsError(f"{folder} has no {file.name}")
        try:
            return cls(models.BPE.from_file(*map(str, files)))
        except Exception as error:
            # tokenizers raises bare Exception for any file that it does not understand.
            raise WeightsError(f"vocab.json and merges.txt in {folder} cannot be used: {error}") from error

    @classmethod
    def bytes_only(cls) -> QwenTokenizer:
        """One token per byte: for random weights."""
        vocabulary = {char: i for i, char in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
        return cls(models.BPE(vocab=vocabulary, merges=[]))

    def encode(self, text: str) -> list[int]:
        """Ids of ``text`` as it is; control tokens never come out."""
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)
