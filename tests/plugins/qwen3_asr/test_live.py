"""The live protocol: every call and every state of the reference, through the recipe's own stages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from omni import BadRequest, Joined
from omni.engines.torch import TorchEngine, create_engine
from qwen3_asr.features import SAMPLE_RATE
from qwen3_asr.languages import code_of
from qwen3_asr.live import LiveSettings, LiveTranscript
from qwen3_asr.messages import Span
from qwen3_asr.prompts import PromptBuilder
from qwen3_asr.stages import EMBEDS, SPANS


@pytest.fixture
def hear(stages, sink) -> Iterator[Callable[[Span], dict[str, Any]]]:
    """A span through encoder, recogniser and engine: what the model was asked and what it wrote."""
    encoder, recogniser = stages["encoder"], stages["ar"]
    engine: TorchEngine = create_engine(recogniser.model(), {"kv_tokens": 4096})
    engine.start()
    recogniser.max_tokens = engine.max_tokens

    def run(span: Span) -> dict[str, Any]:
        state = recogniser.open(Joined(parts={SPANS: span, EMBEDS: encoder.encode([span])[0]}))
        prompt, params = recogniser.prompt(state)
        found = sink()
        engine.submit("live", prompt, params, found)
        tokens, _ = found.result()
        pieces = [piece for step in found.outputs for piece in recogniser.output(state, step)]
        text = "".join(piece.text for piece in pieces)
        assert pieces[-1].ending.text == text
        return {"prompt_ids": prompt.tokens.tolist(), "new_tokens": tokens, "text": text}

    yield run
    engine.close()


@pytest.mark.parametrize("name", ["default_2s", "english_1s"])
def test_calls_and_states_are_the_references(meta, wave, tokenizer, hear, name) -> None:
    recorded = meta["streaming"][name]
    args = recorded["args"]
    settings = LiveSettings(
        chunk_seconds=args.get("chunk_size_sec", 2.0),
        unfixed_chunks=args.get("unfixed_chunk_num", 2),
        unfixed_tokens=args.get("unfixed_token_num", 5),
    )
    language = code_of(args.get("language", ""))
    live = LiveTranscript(tokenizer, settings, language=language, max_new_tokens=10)
    calls, sound = iter(recorded["calls"]), wave("w3")
    stops = (tokenizer.id("<|im_end|>"), tokenizer.id("<|endoftext|>"))

    def answer(span: Span) -> None:
        want, heard = next(calls), hear(span)
        assert round(span.seconds * SAMPLE_RATE) == want["samples"]
        assert heard["prompt_ids"] == want["prompt_ids"]
        assert heard["new_tokens"] == [token for token in want["new_tokens"] if token not in stops]
        assert heard["text"] == want["text"]
        assert want["prompt"].endswith(span.written)
        live.answer(heard["text"])

    fed = 0
    for state in recorded["states"]:
        live.feed(sound[fed : state["fed"]])
        fed = state["fed"]
        if state.get("finished"):
            span = live.finish()
            assert span is not None
            answer(span)
        while (span := live.turn()) is not None:
            answer(span)
        assert (live.turns, live.raw, live.text, live.language) == (
            state["chunk_id"],
            state["raw"],
            state["text"],
            state["language"],
        )
    assert next(calls, None) is None
    assert live.finish() is None, "nothing has come since"


def settled(tokenizer, *answers: str, **options: Any) -> LiveTranscript:
    live = LiveTranscript(tokenizer, LiveSettings(chunk_seconds=0.5, unfixed_chunks=1, unfixed_tokens=2), **options)
    for answer in answers:
        live.feed(np.zeros(8000, np.float32))
        assert live.turn() is not None
        live.answer(answer)
    return live


def next_prefix(live: LiveTranscript, *, last: bool = False) -> str:
    live.feed(np.zeros(4000 if last else 8000, np.float32))
    span = live.finish() if last else live.turn()
    assert span is not None
    assert span.written is not None
    return span.written


def test_the_language_that_was_found_is_part_of_what_is_kept(tokenizer) -> None:
    live = settled(tokenizer, "language English<asr_text>the system is")
    assert (live.language, live.text) == ("English", "the system is")
    kept = next_prefix(live)
    assert kept.startswith("language English<asr_text>")
    assert len(tokenizer.encode_marked(live.raw)) - len(tokenizer.encode_marked(kept)) == 2
    live.answer(" well")
    assert live.text == kept.partition(">")[2] + " well"
    span_ids = PromptBuilder(tokenizer).build(3, written=kept)
    assert tokenizer.id("<asr_text>") in span_ids


def test_half_a_character_is_never_kept_but_by_the_last_turn(tokenizer) -> None:
    raw = "abc鑫"
    tokens = tokenizer.encode_marked(raw)
    assert len(tokenizer.encode("鑫")) == 3, "the tiny vocabulary has it as bytes"
    assert next_prefix(settled(tokenizer, raw, language="en")) == "abc"
    kept = tokenizer.decode(tokens[:-2])
    assert kept.endswith("\ufffd")
    assert next_prefix(settled(tokenizer, raw, language="en"), last=True) == kept


def test_little_text_is_given_up_but_for_a_token_at_the_end(tokenizer) -> None:
    assert next_prefix(settled(tokenizer, "a", language="en")) == ""
    assert next_prefix(settled(tokenizer, "a", language="en"), last=True) == "a"
    assert next_prefix(settled(tokenizer, "", language="en"), last=True) == ""


def test_turns_come_with_chunks(tokenizer) -> None:
    live = LiveTranscript(tokenizer, LiveSettings(chunk_seconds=1.0))
    live.feed(np.zeros(15_999, np.float32))
    assert live.turn() is None
    live.feed(np.zeros(16_002, np.float32))
    assert [live.turn().seconds, live.answer(""), live.turn().seconds, live.answer("")] == [1.0, None, 2.0, None]
    assert live.turn() is None
    last = live.finish()
    assert last is not None
    assert round(last.seconds * 16_000) == 32_001


def test_a_turn_is_answered_before_the_next(tokenizer) -> None:
    live = LiveTranscript(tokenizer, LiveSettings(chunk_seconds=1.0))
    with pytest.raises(ValueError, match="nothing was asked"):
        live.answer("x")
    live.feed(np.zeros(32_000, np.float32))
    live.turn()
    with pytest.raises(ValueError, match="has not been answered"):
        live.turn()


def test_a_session_has_an_end(tokenizer) -> None:
    live = LiveTranscript(tokenizer, LiveSettings(max_seconds=2.0))
    live.feed(np.zeros(32_000, np.float32))
    with pytest.raises(BadRequest, match="up to 2 s") as caught:
        live.feed(np.zeros(1, np.float32))
    assert caught.value.param == "audio"


def test_a_click_can_be_all_there_is(tokenizer) -> None:
    live = LiveTranscript(tokenizer)
    live.feed(np.zeros(10, np.float32))
    span = live.finish()
    assert span is not None
    assert span.mel.shape == (128, 2)
