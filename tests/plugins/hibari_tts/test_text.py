"""What is spoken, what is refused, and that nothing between the two is lost."""

from __future__ import annotations

import random
import re
from typing import Any

import pytest

from hibari_tts.stages import MAX_PHONEMES, cut_phonemes
from hibari_tts.text import _FOLDED, _READ, _SILENT, _WORDED
from omni import BadRequest, SpeechRequest


@pytest.fixture
def phonemes(voice: dict[str, Any]) -> Any:
    def phonemes(text: str) -> str:
        return " ".join(item.phonemes for item in voice["text"].process(SpeechRequest(text=text)))

    return phonemes


@pytest.mark.parametrize(
    ("text", "quoted", "where"),
    [
        ("你好", "'你好'", 1),
        ("Hello 世界, how are you?", "'世界'", 7),
        ("Доброе утро", "'Доброе'", 1),
        ("καλημέρα", "'καλημέρα'", 1),
        ("مرحبا", "'مرحبا'", 1),
        ("नमस्ते", "'नमस्ते'", 1),
        ("😀😀", "'😀😀'", 1),
        ("All good 👍 now", "'👍'", 10),
        ("I ❤️ it", "'❤️'", 3),
        ("10⁶ is a million", "'⁶'", 3),
        ("☃", "'☃'", 1),
        ("a\x07b", "'\\x07'", 2),
        ("٣ apples", "'٣'", 1),
    ],
)
def test_characters_that_cannot_be_spoken_are_quoted(phonemes: Any, text: str, quoted: str, where: int) -> None:
    with pytest.raises(BadRequest) as error:
        phonemes(text)
    assert error.value.param == "input"
    assert error.value.code == "unspeakable_text"
    assert f"{quoted} at character {where}" in error.value.message


def test_a_text_of_another_script_is_not_quoted_in_full(phonemes: Any) -> None:
    with pytest.raises(BadRequest, match="and 95 more places") as error:
        phonemes("мир " * 100)
    assert len(error.value.message) < 300


@pytest.mark.parametrize("text", ["...", "?!", "—", "“”", "* * *", "(_)", "•", "™"])
def test_punctuation_alone_is_refused(phonemes: Any, text: str) -> None:
    with pytest.raises(BadRequest, match="nothing to speak") as error:
        phonemes(text)
    assert error.value.param == "input"


@pytest.mark.parametrize(
    ("text", "as_if"),
    [
        ("don’t ‘do’ that", "don't 'do' that"),
        ("«Hello», „hello‟", '"Hello", "hello"'),
        ("well‐known, well‑known", "well-known, well-known"),
        ("Ａｂｃ！", "Abc!"),
        ("ﬁnd the ﬂag", "find the flag"),
        ("Vi\u1ec7t", "Viet"),
        ("H₂O", "H2O"),
        ("x ≤ 5", "x less than or equal to 5"),
        ("a > b", "a greater than b"),
        (">5 items", "greater than 5 items"),
        ("−5 degrees", "minus 5 degrees"),
        ("20℃", "20 degrees Celsius"),
        ("2⅓ cups", "2 one third cups"),
        ("№ 5", "number 5"),
        ("5 * 6", "5 times 6"),
        ("2 ** 8", "2 to the power of 8"),
        ("**bold**", "bold"),
        ("~5 people", "about 5 people"),
        ("5€", "5 euros"),
        ("1 $", "1 dollar"),
        ("the $ sign", "the dollar sign"),
        ("$5.99", "5 dollars and 99 cents"),
        ("£0.01", "1 penny"),
        ("-$5", "minus 5 dollars"),
        ("$1,000 and $2", "1,000 dollars and 2 dollars"),
        ("$2.5 million", "2.5 million dollars"),
        ("€5k", "5 thousand euros"),
        ("agent 007", "agent zero zero seven"),
        ("version 3.10", "version 3 point one zero"),
        ("α decay", "alpha decay"),
        ("π", "pi"),
        ("3 μm", "3 micrometers"),
        ("mail me@example.com", "mail me @ example dot com"),
        ("see www.example.com/a", "see www dot example dot com slash a"),
        ("[the docs](https://example.com)", "[the docs] (https colon slash slash example dot com)"),
        ("back\\slash", "back backslash slash"),
    ],
)
def test_signs_are_read(phonemes: Any, text: str, as_if: str) -> None:
    def sounds(text: str) -> list[str]:
        return re.findall(r"[^\W_]+", re.sub("[ˈˌ]", "", phonemes(text)))

    assert "".join(sounds(text)) == "".join(sounds(as_if))


@pytest.mark.parametrize(
    "text", ["café", "naïve", "Zürich", "Łódź", "%", "&", "@", "20%", "AT&T", "50°C", "½", "x²", "©", "ü", "7", "#1"]
)
def test_accents_digits_and_symbols_have_a_sound(phonemes: Any, text: str) -> None:
    assert any(char.isalpha() for char in phonemes(text))


def test_no_number_and_no_letter_is_lost_between_signs(phonemes: Any) -> None:
    """The front end silently drops some of "-5", ",5", "/5", ".5x"; every 5 has an f in it, every x a ks."""
    chance = random.Random(20)
    signs = [c for c in sorted([*_READ, *_SILENT, *_FOLDED, *_WORDED]) if not c.isalnum()]
    alphabet = ["5"] * 12 + ["x"] * 6 + [" "] * 8 + signs
    spoken = 0
    for _ in range(2000):
        text = "".join(chance.choice(alphabet) for _ in range(chance.randint(2, 9)))
        if "5" not in text and "x" not in text:
            continue
        sound = phonemes(text)
        assert sound.count("f") >= len(re.findall("5+", text)), text
        assert sound.count("ks") >= len(re.findall("x+", text)), text
        spoken += 1
    assert spoken > 1000


def test_letters_beyond_the_longest_unknown_word_are_spoken(phonemes: Any) -> None:
    word = "zilk" * 6  # 24 letters, as long as the front end reads
    assert phonemes(word * 3).split() == [phonemes(word)] * 3


def test_numbers_of_any_length_are_read_digit_by_digit(phonemes: Any) -> None:
    assert phonemes("4" * 6000).split() == phonemes("4").split() * 6000


@pytest.mark.parametrize("unit", ["a-", "@", "1/", "a.", "$1,", "x'", "<", "word "])
def test_hostile_texts_take_linear_time(voice: dict[str, Any], unit: str) -> None:
    text = (unit * 50_000)[:50_000]
    first = next(iter(voice["text"].process(SpeechRequest(text=text))))  # quadratic: minutes
    assert first.phonemes


def test_phonemes_are_cut_between_words_and_none_is_lost() -> None:
    clauses = "a bc def, ghij k; lm nop qr stu vwx yz ab cd ef gh ij kl mn op qr st"
    for limit in (5, 8, 13, 20, 40, 200):
        pieces = list(cut_phonemes(clauses, limit))
        assert " ".join(pieces) == clauses
        assert all(len(piece) <= limit for piece in pieces)
    assert next(cut_phonemes(clauses, 24)) == "a bc def, ghij k;"
    assert list(cut_phonemes("x" * 30, 12)) == ["x" * 12, "x" * 12, "x" * 6]


def test_a_long_sentence_without_punctuation_is_cut(voice: dict[str, Any]) -> None:
    words = ["the", "quiet", "river", "runs", "past", "seven", "old", "mills", "and", "a", "stone", "bridge"]
    text = " ".join(words * 50)
    parts = list(voice["text"].process(SpeechRequest(text=text)))
    assert len(parts) > 5
    assert all(len(part.phonemes) <= MAX_PHONEMES for part in parts)
    assert sum(len(part.phonemes.split()) for part in parts) == len(words) * 50
    assert [part.position for part in parts] == list(range(len(parts)))
    assert [part.last for part in parts] == [False] * (len(parts) - 1) + [True]
