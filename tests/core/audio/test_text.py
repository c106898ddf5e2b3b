"""Cleaning and splitting text."""

from __future__ import annotations

import time
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omni.audio import has_speakable, normalize_text, split_text
from omni.errors import BadRequest

# Letters, marks, spaces and everything the splitter has an opinion about.
ALPHABET = "aB3é\u0301 \n\t.,;:!?…—–\"'”)。！？，、।॥؟،क\u094dषह\u200d\u200c👨👩🏽🇩🇪ᄀ\u1161\u11a8한漢あ\u00a0\u2028"


@pytest.mark.parametrize(
    ("raw", "clean"),
    [
        ("cafe\u0301", "café"),
        ("\ufeffhello", "hello"),
        ("a\u200bb\u2060c\u00add", "abcd"),
        ("a\u202eb\u2066c\u2069\u200e\u061cd", "abcd"),
        ("a\0b\x07c\x7fd\x9fe", "abcde"),
        ("a\tb\nc", "a\tb\nc"),
        ("a\r\nb\rc\x0bd\x0ce\x85f", "a\nb\nc\nd\ne\nf"),
        ("a\u00a0b  c\u3000d", "a\u00a0b  c\u3000d"),
        ("👨\u200d👩\u200d👧 👩🏽\u200d🔬 ❤\ufe0f\u200d🔥", "👨\u200d👩\u200d👧 👩🏽\u200d🔬 ❤\ufe0f\u200d🔥"),
        ("می\u200cخواهم", "می\u200cخواهم"),
        ("क\u094d\u200dष ന\u0d4d\u200d", "क\u094d\u200dष ന\u0d4d\u200d"),
        ("a\u200db\u200cc\u200d", "abc"),
        ("می\u200c\u200cx", "میx"),
        ("\u0600\u0661\u06dd", "\u0600\u0661\u06dd"),
        ("x\U000e0041\U000e007fy", "xy"),
        ("ﬁ ½ Å", "ﬁ ½ Å"),
        ("", ""),
    ],
)
def test_normalize(raw, clean):
    assert normalize_text(raw) == clean


@pytest.mark.parametrize("gap", ["", "\u200b"])
def test_marks_without_end_are_refused_at_once(gap):
    """Putting marks in order is quadratic, and holds the interpreter while it lasts."""
    start = time.perf_counter()
    with pytest.raises(BadRequest, match="combining marks"):
        normalize_text("a" + f"\u0301{gap}\u0316" * 100_000)
    assert time.perf_counter() - start < 1
    most = "a" + "\u0316\u0323" * 15
    assert normalize_text(most + "b") == unicodedata.normalize("NFC", most + "b")


def test_half_of_a_character():
    with pytest.raises(BadRequest, match="character 3") as caught:
        normalize_text("ab\ud83d", param="text")
    assert caught.value.param == "text"


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    st.text(st.sampled_from(ALPHABET + "\u200b\ufeff\r\x00") | st.characters(exclude_categories=["Cs"]), max_size=60)
)
def test_normalize_is_idempotent_and_keeps_what_is_visible(text):
    clean = normalize_text(text)
    assert normalize_text(clean) == clean
    assert unicodedata.is_normalized("NFC", clean)
    visible = [c for c in unicodedata.normalize("NFC", text) if unicodedata.category(c)[0] not in "C"]
    assert [c for c in unicodedata.normalize("NFD", clean) if unicodedata.category(c)[0] in "LNPS"] == [
        c for c in unicodedata.normalize("NFD", "".join(visible)) if unicodedata.category(c)[0] in "LNPS"
    ]


@pytest.mark.parametrize("text", ["a", "1", "漢", "٣", "ह", "Ⅷ", "½", "  x  "])
def test_speakable(text):
    assert has_speakable(text)


@pytest.mark.parametrize("text", ["", " \n", "...", "?!", "👍", "—", "\u0301", "@#$"])
def test_not_speakable(text):
    assert not has_speakable(text)


@pytest.mark.parametrize(
    ("text", "limit", "pieces"),
    [
        ("One. Two! Three? Four", 10, ["One. Two!", "Three?", "Four"]),
        ("Dr. Smith met Mr. Jones. They spoke.", 30, ["Dr. Smith met Mr. Jones.", "They spoke."]),
        ("It is 3.14 exactly. Not 3,15 at all.", 25, ["It is 3.14 exactly.", "Not 3,15 at all."]),
        ("He works in the U.S. Army today. Fine.", 36, ["He works in the U.S. Army today.", "Fine."]),
        ("J. R. R. Tolkien wrote it. Yes, he did.", 30, ["J. R. R. Tolkien wrote it.", "Yes, he did."]),
        ("Use nuts, e.g. almonds. Then mix.", 30, ["Use nuts, e.g. almonds.", "Then mix."]),
        ("See No. 5 now. No. 6 is gone.", 15, ["See No. 5 now.", "No. 6 is gone."]),
        ("He said no. Then he left.", 20, ["He said no.", "Then he left."]),
        ("Am 3. Oktober ist frei. Schön.", 25, ["Am 3. Oktober ist frei.", "Schön."]),
        ("That was in 1990. Then it ended.", 20, ["That was in 1990.", "Then it ended."]),
        ("Wait... what? Really... Yes it is.", 26, ["Wait... what? Really...", "Yes it is."]),
        ("“Stop!” he said. “Why?” She left.", 25, ["“Stop!” he said. “Why?”", "She left."]),
        ("(It rained.) We stayed.", 15, ["(It rained.)", "We stayed."]),
        ("First line\n\nsecond part of it", 20, ["First line", "second part of it"]),
        ("今天天气很好。我们去公园吧！你想去吗？", 10, ["今天天气很好。", "我们去公园吧！", "你想去吗？"]),
        ("「好的。」他说。", 6, ["「好的。」", "他说。"]),
        ("यह एक है। वह दो है॥ तीन", 12, ["यह एक है।", "वह दो है॥", "तीन"]),
        ("كيف حالك؟ أنا بخير شكرا.", 16, ["كيف حالك؟", "أنا بخير شكرا."]),
        ("one two, three four five", 14, ["one two,", "three four", "five"]),
        ("wide—and narrow", 10, ["wide—", "and narrow"]),
        ("我喜欢苹果，香蕉和梨子", 8, ["我喜欢苹果，", "香蕉和梨子"]),
        ("alpha beta gamma", 10, ["alpha beta", "gamma"]),
        ("abcdefghij", 4, ["abcd", "efgh", "ij"]),
        ("  padded  ", 20, ["padded"]),
        (" \n ", 5, []),
        ("", 5, []),
    ],
)
def test_split(text, limit, pieces):
    assert split_text(text, limit) == pieces


def test_first_piece_is_shorter():
    text = "One two three. " * 20
    pieces = split_text(text, 100, first_max_chars=20)
    assert pieces[0] == "One two three."
    assert all(60 < len(piece) <= 100 for piece in pieces[1:-1])
    assert split_text("short", 100, 20) == ["short"]
    assert split_text("This fits a piece but not the first.", 100, 20)[0] == "This fits a piece"


def test_six_hundred_words_without_a_mark():
    pieces = split_text(" ".join(["word"] * 600), 200)
    assert len(pieces) == 15
    assert all(180 < len(piece) <= 200 for piece in pieces)


@pytest.mark.parametrize(
    "character",
    [
        "e\u0301\u0323",
        "👨\u200d👩\u200d👧",
        "👍🏽",
        "🇩🇪",
        "क\u094dष\u093f",
        "\u1112\u1161\u11ab",
        "❤\ufe0f",
    ],
)
def test_a_hard_cut_keeps_characters_whole(character):
    pieces = split_text(character * 50, 23)
    assert "".join(pieces) == character * 50
    assert all(len(piece) % len(character) == 0 for piece in pieces)


@settings(max_examples=400, deadline=None, derandomize=True)
@given(
    text=st.text(st.sampled_from(ALPHABET), max_size=300) | st.text(max_size=200),
    limit=st.integers(1, 60),
    first=st.none() | st.integers(1, 60),
)
def test_nothing_is_lost_or_moved(text, limit, first):
    pieces = split_text(text, limit, first)
    assert "".join("".join(pieces).split()) == "".join(text.split())
    for number, piece in enumerate(pieces):
        assert 0 < len(piece) <= (limit if number or first is None else first)
        assert piece == piece.strip()
    # Joined with what stood between them they are the text: nothing inside of a piece has changed.
    position = 0
    for piece in pieces:
        found = text.index(piece, position)
        assert not text[position:found].strip()
        position = found + len(piece)


@pytest.mark.parametrize(
    "text",
    [
        *("." * 100_000, " " * 100_000, "a" * 100_000, ")" * 100_000, "1. " * 30_000, ". " * 50_000),
        *(".)" * 50_000, "\n \t" * 30_000, "a\u0301" * 50_000, "🇩" * 50_000),
    ],
    ids=lambda text: repr(text[:3]),
)
def test_time_is_linear(text):
    start = time.thread_time()
    split_text(text, 200, 50)
    normalize_text(text)
    assert time.thread_time() - start < 3


@pytest.mark.parametrize(("limit", "first"), [(0, None), (-1, None), (10, 0)])
def test_impossible_limits(limit, first):
    with pytest.raises(ValueError, match="at least one"):
        split_text("text", limit, first)
