"""What the model writes: repair, language, text; whole, and as it is written."""

from __future__ import annotations

import itertools
import random
import re

import pytest

from qwen3_asr.deltas import Deltas, Runs, Stripped, Units
from qwen3_asr.languages import NAMES, code_of, merge, normalise
from qwen3_asr.transcripts import parse, repair


def test_parsing(meta) -> None:
    for case in meta["rules"]["parse"]:
        assert list(parse(case["raw"], case["user_language"])) == case["out"]


def test_a_line_that_names_no_language_is_passed_over() -> None:
    assert parse("language \nlanguage German<asr_text>x") == ("German", "x")
    assert parse("language\nLANGUAGE german<asr_text>x") == ("German", "x")
    assert parse("language<asr_text>x") == ("", "x")


def test_repair(meta) -> None:
    for case in meta["rules"]["repetition"]:
        assert repair(case["raw"]) == case["out"]


def test_names_of_languages(meta) -> None:
    for case in meta["rules"]["merge_languages"]:
        assert merge(case["i"]) == case["out"]
    for case in meta["rules"]["normalize_language"]:
        assert normalise(case["i"]) == case["out"]


def test_codes_of_languages(meta) -> None:
    assert len(NAMES) == len(set(NAMES.values())) == 30
    for code, name in NAMES.items():
        assert code_of(name) == code_of(name.upper()) == code_of(f" {name.lower()} ") == code
    assert code_of("Chinese,english") == "zh"
    assert code_of("Elvish,German") == "de"
    assert code_of("") is code_of("Elvish") is None


# As it is written -----------------------------------------------------------------------------------------------------


def whole(text: str, run: int, unit: int) -> str:
    text = re.sub(rf"(?s)(.)\1{{{run},}}", r"\1", text)
    return re.sub(rf"(?s)(?=.{{{2 * run}}})(.{{1,{unit}}}?)\1{{{run - 1},}}", r"\1", text)


@pytest.mark.parametrize(("run", "unit", "letters", "longest"), [(2, 3, "ab", 10), (3, 2, "ab", 9), (2, 3, "abc", 6)])
def test_no_text_is_taken_back_whatever_follows(run: int, unit: int, letters: str, longest: int) -> None:
    """Every text there is of some length, letter by letter."""
    for length in range(longest + 1):
        for text in map("".join, itertools.product(letters, repeat=length)):
            runs, units, given = Runs(run), Units(run, unit), ""
            want = whole(text, run, unit)
            for letter in text:
                given += units.push(runs.push(letter))
                assert want.startswith(given)
            given += units.push(runs.finish()) + units.finish()
            assert given == want


HEADS = ("", "language English<asr_text>", "language None<asr_text> ", "foo\nlanguage chinese<asr_text>", "<asr_text>")


@pytest.mark.parametrize("seed", range(4))
def test_pieces_are_the_parsed_text(seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(25):
        text = draw.choice(HEADS)
        for _ in range(draw.randint(1, 6)):
            text += "".join(draw.choices("ab c好\n", k=draw.randint(1, 22))) * draw.choice((1, 1, 2, 19, 20, 21, 25))
        for language in (None, "English"):
            named, want = parse(text, language)
            deltas, given, at = Deltas(language), "", 0
            while at < len(text):
                size = draw.randint(1, 5)
                given += deltas.push(text[at : at + size])
                at += size
                assert want.startswith(given)
            given += deltas.finish()
            assert given == deltas.text == want
            assert deltas.language == named or not want


def test_ordinary_text_leaves_but_for_what_may_be_a_second_copy() -> None:
    """A letter that came a moment ago may begin a repetition: it waits for the next one."""
    deltas = Deltas("English")
    given = [deltas.push(piece) for piece in ("The", " quick", " brown", " fox", " jumps", " over it all")]
    assert given == ["The", " quick", " brown", " fox", " jumps", " over it al"]
    assert deltas.finish() == "l"


def test_nothing_leaves_before_the_tag() -> None:
    deltas = Deltas()
    assert [deltas.push(piece) for piece in ("language", " German", "<asr", "_text>", "Kopf")] == [
        "",
        "",
        "",
        "",
        "Kopf",
    ]
    assert deltas.language == "German"
    deltas = Deltas()
    assert deltas.push("Kopf hoch") == ""
    assert deltas.language is None
    assert (deltas.finish(), deltas.language) == ("Kopf hoch", "")


def test_a_loop_leaves_once() -> None:
    deltas = Deltas("English")
    given = [deltas.push("la ") for _ in range(200)]
    assert "".join(given) + deltas.finish() == parse("la " * 200, "English")[1] == "la la"
    assert len("".join(given)) <= 3


def test_white_space_waits() -> None:
    stripped = Stripped()
    assert [stripped.push(text) for text in (" ", " a ", "\n", "b", " ")] == ["", "a", "", " \nb", ""]
