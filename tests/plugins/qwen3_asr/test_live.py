"""The live protocol: every call and every state of the reference, through the recipe's own stages."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from asr_serving import WEIGHTS

from omni import BadRequest, Joined, TranscriptionRequest
from omni.config import configure
from omni.engines.torch import TorchEngine, create_engine
from omni.plugins import Plugins
from omni.service import Service
from qwen3_asr.features import SAMPLE_RATE
from qwen3_asr.languages import code_of
from qwen3_asr.live import LiveSettings, LiveTranscript
from qwen3_asr.prompts import PromptBuilder, kept
from qwen3_asr.stages import EMBEDS, SPANS


@pytest.fixture
def hear(stages, sink) -> Iterator[Callable[[TranscriptionRequest], dict[str, Any]]]:
    """A turn through the stages and an engine: what the model was asked and what it wrote."""
    encoder, recogniser = stages["encoder"], stages["ar"]
    engine: TorchEngine = create_engine(recogniser.model(), {"kv_tokens": 4096})
    engine.start()
    recogniser.max_tokens = engine.max_tokens

    def run(request: TranscriptionRequest) -> dict[str, Any]:
        (span,) = stages["audio"].process(request)
        state = recogniser.open(Joined(parts={SPANS: span, EMBEDS: encoder.encode([span])[0]}))
        prompt, params = recogniser.prompt(state)
        found = sink()
        engine.submit("live", prompt, params, found)
        tokens, _ = found.tokens()
        pieces = [piece for step in found.outputs for piece in recogniser.output(state, step)]
        text = "".join(piece.text for piece in pieces)
        assert pieces[-1].ending.text == text
        return {"span": span, "prompt_ids": prompt.tokens.tolist(), "new_tokens": tokens, "text": text}

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
    live = LiveTranscript(settings, language=language, max_new_tokens=10)
    calls, sound = iter(recorded["calls"]), wave("w3")
    stops = (tokenizer.id("<|im_end|>"), tokenizer.id("<|endoftext|>"))

    def answer(request: TranscriptionRequest) -> None:
        want, heard = next(calls), hear(request)
        assert round(heard["span"].seconds * SAMPLE_RATE) == want["samples"]
        assert heard["prompt_ids"] == want["prompt_ids"]
        assert heard["new_tokens"] == [token for token in want["new_tokens"] if token not in stops]
        begins = heard["text"].removesuffix(want["text"])
        assert heard["text"] == begins + want["text"]
        assert want["prompt"].endswith(begins)
        live.answer(heard["text"])

    fed = 0
    for state in recorded["states"]:
        live.feed(sound[fed : state["fed"]])
        fed = state["fed"]
        if state.get("finished"):
            request = live.finish()
            assert request is not None
            answer(request)
        while (request := live.turn()) is not None:
            answer(request)
        assert (live.turns, live.raw, live.text, live.language) == (
            state["chunk_id"],
            state["raw"],
            state["text"],
            code_of(state["language"]),
        )
    assert next(calls, None) is None
    assert live.finish() is None, "nothing has come since"


def settled(*answers: str, **options: Any) -> LiveTranscript:
    live = LiveTranscript(LiveSettings(chunk_seconds=0.5, unfixed_chunks=1, unfixed_tokens=2), **options)
    for answer in answers:
        live.feed(np.zeros(8000, np.float32))
        assert live.turn() is not None
        live.answer(answer)
    return live


def next_prefix(tokenizer: Any, live: LiveTranscript, *, last: bool = False) -> str:
    live.feed(np.zeros(4000 if last else 8000, np.float32))
    request = live.finish() if last else live.turn()
    assert request is not None
    params = request.params
    assert params["finishing"] == last
    return kept(tokenizer, params["written"], params["rollback"], finishing=params["finishing"])


def test_the_language_that_was_found_is_part_of_what_is_kept(tokenizer) -> None:
    live = settled("language English<asr_text>the system is")
    assert (live.language, live.text) == ("en", "the system is")
    begins = next_prefix(tokenizer, live)
    assert begins.startswith("language English<asr_text>")
    assert len(tokenizer.encode_marked(live.raw)) - len(tokenizer.encode_marked(begins)) == 2
    live.answer(begins + " well")
    assert live.text == begins.partition(">")[2] + " well"
    span_ids = PromptBuilder(tokenizer).build(3, written=begins)
    assert tokenizer.id("<asr_text>") in span_ids


def test_half_a_character_is_never_kept_but_by_the_last_turn(tokenizer) -> None:
    raw = "abc鑫"
    tokens = tokenizer.encode_marked(raw)
    assert len(tokenizer.encode("鑫")) == 3, "the tiny vocabulary has it as bytes"
    assert next_prefix(tokenizer, settled(raw, language="en")) == "abc"
    broken = tokenizer.decode(tokens[:-2])
    assert broken.endswith("\ufffd")
    assert next_prefix(tokenizer, settled(raw, language="en"), last=True) == broken


def test_little_text_is_given_up_but_for_a_token_at_the_end(tokenizer) -> None:
    assert next_prefix(tokenizer, settled("a", language="en")) == ""
    assert next_prefix(tokenizer, settled("a", language="en"), last=True) == "a"
    assert next_prefix(tokenizer, settled("", language="en"), last=True) == ""


def seconds(request: TranscriptionRequest | None) -> float:
    assert request is not None
    return request.audio.nbytes / 4 / SAMPLE_RATE


def test_turns_come_with_chunks() -> None:
    live = LiveTranscript(LiveSettings(chunk_seconds=1.0))
    live.feed(np.zeros(15_999, np.float32))
    assert live.turn() is None
    live.feed(np.zeros(16_002, np.float32))
    assert [seconds(live.turn()), live.answer(""), seconds(live.turn()), live.answer("")] == [1.0, None, 2.0, None]
    assert live.turn() is None
    assert round(seconds(live.finish()) * 16_000) == 32_001


def test_a_turn_is_answered_before_the_next() -> None:
    live = LiveTranscript(LiveSettings(chunk_seconds=1.0))
    with pytest.raises(ValueError, match="nothing was asked"):
        live.answer("x")
    live.feed(np.zeros(32_000, np.float32))
    live.turn()
    with pytest.raises(ValueError, match="has not been answered"):
        live.turn()


def test_a_session_has_an_end() -> None:
    live = LiveTranscript(LiveSettings(max_seconds=2.0))
    live.feed(np.zeros(32_000, np.float32))
    with pytest.raises(BadRequest, match="up to 2 s") as caught:
        live.feed(np.zeros(1, np.float32))
    assert caught.value.param == "audio"


def test_a_click_can_be_all_there_is(stages) -> None:
    live = LiveTranscript()
    live.feed(np.zeros(10, np.float32))
    (span,) = stages["audio"].process(live.finish())
    assert span.mel.shape == (128, 2)


# What is fed ----------------------------------------------------------------------------------------------------------


def test_int16_is_sound_too(wave) -> None:
    sound = wave("w1")
    heard = []
    for samples in (sound, sound.astype(np.float64), np.rint(sound * 32768).astype(np.int16)):
        live = LiveTranscript()
        live.feed(samples)
        request = live.finish()
        assert request is not None
        heard.append(request.audio.view(np.float32))
    assert np.array_equal(heard[0], sound)
    assert np.array_equal(heard[1], sound)
    assert np.array_equal(heard[2], sound)


@pytest.mark.parametrize(
    ("samples", "words"),
    [
        (np.zeros(9, np.int32), r"not int32 \(9,\)"),
        (np.zeros(9, np.uint8), "not uint8"),
        (np.zeros((9, 2), np.float32), r"float32 \(9, 2\)"),
        (np.full(9, np.nan, np.float32), "not finite"),
    ],
)
def test_what_is_no_sound_is_refused(samples, words) -> None:
    with pytest.raises(BadRequest, match=words) as caught:
        LiveTranscript().feed(samples)
    assert caught.value.param == "audio"


def test_a_language_that_the_model_lacks_is_refused() -> None:
    with pytest.raises(BadRequest, match="'sw'") as caught:
        LiveTranscript(language="sw")
    assert caught.value.param == "language"


# Through a service ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["default_2s", "english_1s"])
def test_a_service_gives_the_references_texts(meta, wave, name) -> None:
    """The settings are options of the stage ``audio``; turns go through the whole pipeline."""
    recorded = meta["streaming"][name]
    args = recorded["args"]
    options = {
        "chunk_seconds": args.get("chunk_size_sec", 2.0),
        "unfixed_chunks": args.get("unfixed_chunk_num", 2),
        "unfixed_tokens": args.get("unfixed_token_num", 5),
    }
    sound = wave("w3")

    async def run(service: Service) -> None:
        live = service.live(language=code_of(args.get("language", "")), max_new_tokens=10)
        assert live.sample_rate == SAMPLE_RATE
        fed = 0
        for state in recorded["states"]:
            new = await live.feed(sound[fed : state["fed"]])
            fed = state["fed"]
            if state.get("finished"):
                assert not new
                await live.finish()
            assert (live.text, live.language) == (state["text"], code_of(state["language"]))
        assert live.finish_reason in ("stop", "length")
        with pytest.raises(BadRequest, match="'sw'"):
            service.live("qwen3-asr-0.6b", language="sw")

    asyncio.run(serve(run, "qwen3-asr-0.6b", *(f"audio.live.{key}={value}" for key, value in options.items())))


async def serve(run: Callable[[Service], Any], recipe: str, *sets: str) -> None:
    plugins = Plugins.load()
    service = await Service.launch(configure([plugins.recipe(recipe)], sets=sets, weights=[str(WEIGHTS)]), plugins)
    try:
        await run(service)
    finally:
        await service.close()


def test_no_client_of_the_file_endpoint_sets_what_is_a_turns(served, wave) -> None:
    for field in ("written", "rollback", "finishing"):
        answer = served.post(wave("w1"), **{field: "1"})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, field)
