"""Text to ids and back."""

from __future__ import annotations

import json

import pytest

from omni import WeightsError
from qwen3_asr.tokenizer import AUDIO_PAD, END_OF_TEXT, IM_END, TEXT_TAG, AsrTokenizer, TextDecoder, bytes_only

TEXTS = ("", "Hello, world!", "你好，世界", "l'été à 8h30\n\n  deux  espaces ", "🦊 ok", "don't WE'LL 12345", "e\u0301")


@pytest.mark.parametrize("text", TEXTS)
def test_text_comes_back(tokenizer, text) -> None:
    import unicodedata

    assert tokenizer.decode(tokenizer.encode(text)) == unicodedata.normalize("NFC", text)
    assert tokenizer.encode_marked(text) == tokenizer.encode(text)


def test_what_a_client_writes_is_text(tokenizer) -> None:
    for name in (IM_END, AUDIO_PAD, TEXT_TAG, END_OF_TEXT):
        ids = tokenizer.encode(f"a{name}b")
        assert tokenizer.id(name) not in ids
        assert tokenizer.decode(ids) == f"a{name}b"
        assert tokenizer.encode_marked(f"a{name}b").count(tokenizer.id(name)) == 1


def test_special_tokens_are_no_text_but_the_tag_is(tokenizer) -> None:
    ids = [tokenizer.id(name) for name in (IM_END, TEXT_TAG, AUDIO_PAD, "<non_speech>")]
    assert tokenizer.decode(ids) == "<asr_text><non_speech>"
    assert tokenizer.decode([tokenizer.size + 5]) == "", "an id without a token"


def test_half_a_character_waits(tokenizer) -> None:
    small = bytes_only()
    decoder = TextDecoder(small)
    assert [decoder.push(token) for token in small.encode("é好")] == ["", "é", "", "", "好"]
    first, *_ = small.encode("好")
    assert decoder.push(first) == ""
    assert decoder.push(small.encode("a")[0]) == "\ufffda"
    assert decoder.push(first) == ""
    assert decoder.finish() == "\ufffd"


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("vocab.json", None, "vocab.json"),
        ("vocab.json", "[]", "vocab.json"),
        ("vocab.json", '{"a": "x"}', "vocab.json"),
        ("vocab.json", '{"a": 0}', "do not make a tokenizer"),
        ("merges.txt", "a b c\n", "merges.txt"),
        ("merges.txt", "q qqqq\n", "do not make a tokenizer"),
        ("tokenizer_config.json", "{}", "tokenizer_config.json"),
        ("tokenizer_config.json", '{"added_tokens_decoder": {"1": {"content": "x", "special": true}}}', "<|im_start|>"),
    ],
)
def test_broken_files_are_named(folders, tmp_path, name, content, words) -> None:
    for file in ("vocab.json", "merges.txt", "tokenizer_config.json"):
        (tmp_path / file).write_bytes((folders.asr / file).read_bytes())
    if content is None:
        (tmp_path / name).unlink()
    else:
        (tmp_path / name).write_text(content)
    with pytest.raises(WeightsError) as caught:
        AsrTokenizer.load(tmp_path)
    assert words in caught.value.message


def test_a_vocabulary_of_something_else_than_bytes(folders, tmp_path) -> None:
    for file in ("vocab.json", "tokenizer_config.json"):
        (tmp_path / file).write_bytes((folders.asr / file).read_bytes())
    (tmp_path / "vocab.json").write_text('{"你": 0}', "utf-8")
    (tmp_path / "merges.txt").write_text("#version: 0.2\n")
    with pytest.raises(WeightsError, match="not a byte-level vocabulary"):
        AsrTokenizer.load(tmp_path)


def test_the_alphabet_is_all_bytes() -> None:
    small = bytes_only()
    for byte in range(256):
        assert small.bytes_of(byte) == bytes([byte])
    assert json.dumps(small.decode(range(0x20, 0x7F)))
