"""Text to token ids. Control tokens are named by the prompt builder alone; what a user types is always text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from omni.errors import WeightsError

_CONTROL = ("<|im_start|>", "<|im_end|>", "<|voice|>")


class FishTokenizer:
    """Byte-level BPE of ``tokenizer.json``.

    The added tokens (``<|im_end|>``, ``<think>``, ``<|semantic:5|>`` …) are taken out of the tokenizer, so text that
    spells one is cut into ordinary pieces. The reference turns it into the control token.
    """

    def __init__(self, definition: dict[str, Any]) -> None:
        """``definition``: the parsed ``tokenizer.json``.

        Raises:
            WeightsError: it is not a tokenizer, or a control or semantic token is missing.
        """
        try:
            added = {str(t["content"]): int(t["id"]) for t in definition["added_tokens"]}
            self._tokenizer = Tokenizer.from_str(json.dumps({**definition, "added_tokens": []}))
        except Exception as error:
            # tokenizers raises bare Exception for any definition that it does not understand.
            raise WeightsError(f"tokenizer.json cannot be used: {error}") from error
        missing = [name for name in _CONTROL if name not in added]
        if missing:
            raise WeightsError(f"tokenizer.json has no token {', '.join(missing)}")
        self.im_start, self.im_end, self.voice = (added[name] for name in _CONTROL)
        semantic = sorted(i for name, i in added.items() if name.startswith("<|semantic:"))
        if not semantic or semantic[-1] - semantic[0] + 1 != len(semantic):
            raise WeightsError("tokenizer.json has no contiguous range of <|semantic:i|> tokens")
        self.semantic_begin, self.semantic_end = semantic[0], semantic[-1]
        self.size = max(self._tokenizer.get_vocab_size(), max(added.values()) + 1)

    @classmethod
    def load(cls, folder: Path) -> FishTokenizer:
        """Raises :class:`WeightsError` if ``tokenizer.json`` is missing or broken."""
        file = folder / "tokenizer.json"
        try:
            definition = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise WeightsError(f"cannot read {file}: {error}") from error
        return cls(definition)

    @classmethod
    def bytes_only(cls, semantic: int) -> FishTokenizer:
        """One token per byte, then the control tokens and ``semantic`` semantic ones: for random weights."""
        vocabulary = {char: i for i, char in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
        tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer.decoder = decoders.ByteLevel()
        definition = json.loads(tokenizer.to_str())
        names = [*_CONTROL, *(f"<|semantic:{i}|>" for i in range(semantic))]
        definition["added_tokens"] = [{"id": len(vocabulary) + i, "content": name} for i, name in enumerate(names)]
        return cls(definition)

    def encode(self, text: str) -> list[int]:
        """Ids of ``text`` as it is; control tokens never come out."""
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)
