"""Tokens and prompts against the reference's, and where we differ on purpose."""

from __future__ import annotations

import numpy as np
import pytest

from fish_s2pro.prompts import Conversation, Reference, batch_texts, pack_turns, split_sentences, split_turns
from fish_s2pro.tokenizer import FishTokenizer
from omni.errors import BadRequest, WeightsError

DIFFERENT = {"leading_dropped", "special_in_text"}
"""Cases in which the reference drops text, or lets a user write control tokens."""


def references(case: dict, golden) -> list[Reference]:
    names = case.get("prompt_tokens", [])
    codes = [golden[f"refcodes.{name}"].numpy() for name in names]
    return [Reference(t, c) for t, c in zip(case.get("prompt_text", []), codes, strict=True)]


def test_tokenizer(tokenizer, meta) -> None:
    control = {"<|im_start|>": "im_start", "<|im_end|>": "im_end", "<|voice|>": "voice"}
    for case in meta["tokenizer"]:
        text, ids = case["text"], case["ids"]
        if "<|semantic" in text or "<think>" in text or text == "text with <|im_end|> inside":
            # Typed by a user these are text: only ordinary pieces, and as many bytes as were typed.
            assert max(tokenizer.encode(text)) < meta["ids"]["im_start"] - 1
            continue
        rest, found = text, []
        for name, key in control.items():
            if rest.startswith(name):
                found, rest = [*found, meta["ids"][key]], rest[len(name) :]
        tail = [tokenizer.voice] if rest.endswith("<|voice|>") else []
        assert [*found, *tokenizer.encode(rest.removesuffix("<|voice|>")), *tail] == ids, text


def test_special_ids(tokenizer, meta) -> None:
    ids = meta["ids"]
    assert (tokenizer.im_start, tokenizer.im_end, tokenizer.voice) == (
        ids["im_start"],
        ids["im_end"],
        ids["voice"],
    )
    assert (tokenizer.semantic_begin, tokenizer.semantic_end) == (ids["semantic_begin"], ids["semantic_end"])


def test_turns_and_batches(meta) -> None:
    for case in meta["split"]:
        turns = split_turns(case["text"])
        if case["text"].startswith("intro"):
            assert turns == ["intro", *case["turns"]], "text before the first tag is kept"
            continue
        assert turns == case["turns"]
        for limits, batches in case["batches"].items():
            max_turns, chunk_length = map(int, limits.split("/"))
            assert pack_turns(turns, chunk_length, max_turns) == batches


def test_prompts(tokenizer, model, golden, meta) -> None:
    """Every batch of every case, with the reference's own codes as context."""
    seen = 0
    for case in meta["prompts"]:
        if case["name"] in DIFFERENT:
            continue
        texts = batch_texts(case["text"], case.get("chunk_length", 200))
        assert texts == case["batches"], case["name"]
        talk = Conversation(tokenizer, model.codebooks, references(case, golden))
        for b, text in enumerate(texts):
            prompt = talk.ask(text, model.max_positions)
            values = golden[f"prompt.{case['name']}.{b}.values"].numpy()
            np.testing.assert_array_equal(prompt.tokens, values[0], err_msg=f"{case['name']}.{b}")
            np.testing.assert_array_equal(prompt.codes, values[1:], err_msg=f"{case['name']}.{b}")
            talk.answer(golden[f"prompt.{case['name']}.{b}.codes"].numpy())
            seen += 1
    assert seen == 16


def test_text_before_the_first_tag_is_spoken(meta) -> None:
    case = next(c for c in meta["prompts"] if c["name"] == "leading_dropped")
    assert batch_texts(case["text"], 200) == ["this part is lost\n<|speaker:1|>kept"]


def test_typed_control_tokens_are_text(tokenizer, model, golden, meta) -> None:
    case = next(c for c in meta["prompts"] if c["name"] == "special_in_text")
    tokens = Conversation(tokenizer, model.codebooks).ask(case["text"], 4096).tokens
    plain = Conversation(tokenizer, model.codebooks).ask("hello", 4096).tokens
    control = range(meta["ids"]["im_start"] - 1, model.config.text.vocab_size)
    assert [t for t in tokens if t in control] == [t for t in plain if t in control]
    reference = golden["prompt.special_in_text.0.values"][0].tolist()
    assert len([t for t in reference if t in control]) > len([t for t in plain if t in control])
    for text in ("<|voice|>", "<think>", "<|semantic:3|>"):
        assert not set(tokenizer.encode(text)) & set(control)


LONG = (
    "The first sentence is here. The second one follows, with a comma! Does a third come? "
    "It does; and a fourth one, too. 第五句在这里。第六句也在这里。 Last."
)


@pytest.mark.parametrize("budget", [30, 60, 90])
def test_long_text_is_cut_at_sentence_ends(budget) -> None:
    pieces = batch_texts(LONG, budget)
    assert len(pieces) > 1
    assert "".join(pieces).replace(" ", "") == LONG.replace(" ", "")
    assert all(piece[-1] in ".!?。" for piece in pieces)


def test_long_turns_are_cut_under_their_own_tag() -> None:
    text = f"Before. <|speaker:3|>{LONG}<|speaker:4|>Short."
    batches = batch_texts(text, 60)
    turns = [turn for batch in batches for turn in batch.split("\n")]
    assert turns[0] == "Before."
    assert turns[-1] == "<|speaker:4|>Short."
    assert len(turns) > 4
    assert all(turn.startswith("<|speaker:3|>") for turn in turns[1:-1])
    spoken = "".join(turn.removeprefix("<|speaker:3|>") for turn in turns[1:-1])
    assert spoken.replace(" ", "") == LONG.replace(" ", "")


def test_endless_sentence_is_cut_at_last() -> None:
    text = "word " * 500
    pieces = split_sentences(text, 50)
    assert all(len(piece) <= 200 for piece in pieces)
    assert " ".join(pieces).split() == text.split()


def test_context_that_is_too_long_loses_its_older_half(tokenizer, model, golden) -> None:
    codes = golden["refcodes.ref1"].numpy()
    talk = Conversation(tokenizer, model.codebooks, [Reference("Voice.", codes)])
    whole = Conversation(tokenizer, model.codebooks, [Reference("Voice.", codes)])
    for index in range(9):
        prompt = talk.ask(f"turn {index}", 230)
        full = whole.ask(f"turn {index}", 4096)
        assert len(prompt.tokens) <= 230
        head = len(tokenizer.encode("Voice.")) + codes.shape[1]
        assert prompt.tokens[:head].tolist() == full.tokens[:head].tolist(), "system message stays"
        tail = min(20, len(prompt.tokens))
        assert prompt.tokens[-tail:].tolist() == full.tokens[-tail:].tolist()
        talk.answer(codes)
        whole.answer(codes)
    assert len(full.tokens) > 230
    with pytest.raises(BadRequest) as refused:
        talk.ask("far too long for that", 40)
    assert refused.value.param == "input"


def test_batch_without_frames_is_closed_before_the_next(tokenizer) -> None:
    silent, answered = Conversation(tokenizer, 4), Conversation(tokenizer, 4)
    for talk in (silent, answered):
        talk.ask("One.", 4096)
    answered.answer(np.zeros((4, 0), int))
    assert silent.ask("Two.", 4096).tokens.tolist() == answered.ask("Two.", 4096).tokens.tolist()


def test_codes_of_another_shape_or_range_are_refused(tokenizer) -> None:
    for codes in (np.zeros((3, 5), int), np.zeros(4, int), np.full((4, 5), 128), np.full((4, 5), -1)):
        with pytest.raises(BadRequest):
            Conversation(tokenizer, 4, [Reference("x", codes)])


def test_tokenizer_that_lacks_tokens_is_refused(tmp_path) -> None:
    with pytest.raises(WeightsError, match="tokenizer"):
        FishTokenizer.load(tmp_path)
    for content in ("x", "[]", '{"added_tokens": []}', '{"added_tokens": [], "model": {"type": "BPE"}}'):
        (tmp_path / "tokenizer.json").write_text(content)
        with pytest.raises(WeightsError, match="tokenizer"):
            FishTokenizer.load(tmp_path)


def test_bytes_only_tokenizer() -> None:
    tokenizer = FishTokenizer.bytes_only(96)
    assert tokenizer.semantic_end - tokenizer.semantic_begin + 1 == 96
    ids = tokenizer.encode("héllo <|im_end|> 你好")
    assert len(ids) == len("héllo <|im_end|> 你好".encode())
    assert max(ids) < 256
    assert tokenizer.size == 256 + 3 + 96
