"""Every array of the reference: features, convolutions, encoder, prompts, logits, tokens, batches."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from omni.engines.base import Prompt
from omni.engines.torch import PromptSlice
from qwen3_asr.aligner import causal
from qwen3_asr.encoder import AudioEncoder, positions_of
from qwen3_asr.features import HOP, log_mel
from qwen3_asr.loader import load_encoder
from qwen3_asr.model import AUDIO, AsrModel
from qwen3_asr.prompts import PromptBuilder
from qwen3_asr.tokenizer import TextDecoder

FLOAT = 5e-5
"""What the reference's own rounding needs; measured: features 1.2e-7, encoder 7e-7, logits 2e-5."""
WAVES = ("w1", "w2", "w3")
CASES = {
    "w1.auto": {},
    "w2.auto": {},
    "w3.auto": {},
    "w2.english": {"language": "en"},
    "w2.context": {"context": "Qwen, hotword"},
    "w2.context_chinese": {"context": "Qwen, hotword", "language": "zh"},
    "w2.stop": {"language": "en"},
}


def close(found: torch.Tensor | np.ndarray, want: np.ndarray, tolerance: float = FLOAT) -> None:
    assert tuple(found.shape) == want.shape
    assert np.abs(np.asarray(found) - want).max() <= tolerance


@pytest.mark.parametrize("name", WAVES)
def test_features(golden, wave, name) -> None:
    mel = log_mel(wave(name))
    assert mel.dtype == np.float32
    close(mel, golden[f"{name}.mel"], 1e-6)


def test_features_of_a_clip_in_a_batch_are_those_of_the_clip_with_silence_after_it(golden, wave) -> None:
    first, longest = wave("w1"), wave("w2")
    mel = log_mel(np.pad(first, (0, len(longest) - len(first))))
    close(mel[:, : len(first) // HOP], golden["batch.mel_w1_in_batch"], 1e-6)
    assert golden["batch.feature_attention_mask_sum"].tolist() == [len(longest) // HOP, len(first) // HOP]


def test_lengths(meta) -> None:
    for samples, frames, tokens in meta["info"]["samples_frames_tokens"]:
        assert log_mel(np.zeros(samples, np.float32)).shape == (128, frames)
        assert positions_of(frames) == tokens


@pytest.mark.parametrize("name", WAVES)
def test_encoder(golden, encoder: AudioEncoder, name) -> None:
    mel = golden[f"{name}.mel"]
    close(encoder.convolve(mel), golden[f"{name}.conv_out"])
    close(encoder.encode([mel])[0], golden[f"{name}.audio_embeds"])
    ends = np.cumsum([positions_of(min(800, mel.shape[1] - start)) for start in range(0, mel.shape[1], 800)])
    assert [0, *ends] == golden[f"{name}.cu_seqlens"].tolist()


def test_encoder_of_a_batch(golden, encoder) -> None:
    found = encoder.encode([golden[f"{name}.mel"] for name in (*WAVES, *WAVES)])
    for name, embeds in zip((*WAVES, *WAVES), found, strict=True):
        close(embeds, golden[f"{name}.audio_embeds"])


def test_encoder_without_windows_is_the_references_bug(golden, folders, encoder) -> None:
    endless = encoder.config.model_copy(update={"n_window_infer": 100_000})
    bug = load_encoder(folders.asr, endless, device=encoder.device, dtype=encoder.dtype)
    close(bug.encode([golden["w3.mel"]])[0], golden["w3.audio_embeds_fullattn"])
    assert np.abs(golden["w3.audio_embeds_fullattn"] - golden["w3.audio_embeds"]).max() > 0.05


def test_a_chunk_that_is_filled_up_as_beside_longer_clips(golden, encoder) -> None:
    """What servers that pack clips give for one of less than a second; here it does not depend on the others."""
    mel = golden["w1.mel"]
    filled = encoder.convolve(np.pad(mel, ((0, 0), (0, 100 - mel.shape[1]))))[: positions_of(mel.shape[1])]
    close(filled, golden["w1.conv_out_padded_chunk"])
    close(encoder._attend(filled, [len(filled)]), golden["w1.audio_embeds_padded_chunk"])


def sound(case: str) -> str:
    return case.partition(".")[0]


@pytest.mark.parametrize("case", CASES)
def test_prompt(golden, meta, tokenizer, case) -> None:
    info = meta["info"][case]
    ids = PromptBuilder(tokenizer).build(info["audio_tokens"], **CASES[case])
    assert ids == golden[f"{case}.prompt_ids"].tolist()
    assert len(ids) == info["prompt_len"]


def logits_after(model: AsrModel, ids: list[int], embeds: np.ndarray) -> torch.Tensor:
    """Teacher-forced: logits ``(T, vocabulary)`` after every position."""
    tokens = torch.tensor(ids)
    part = PromptSlice(Prompt(tokens=np.array(ids), embeds={AUDIO: embeds}), 0, len(ids), tokens, tokens[None, :0].t())
    with torch.inference_mode():
        return model.logits(model.forward(model.embed(part), torch.arange(len(ids)), causal([len(ids)])))


def logits_of(golden, model: AsrModel, case: str, kind: str = "") -> torch.Tensor:
    prompt, tokens = golden[f"{case}.prompt_ids"].tolist(), golden[f"{case}.tokens{kind}"].tolist()
    steps = len(golden[f"{case}.logits{kind}"])
    embeds = golden[f"{sound(case)}.audio_embeds{kind}"]
    return logits_after(model, [*prompt, *tokens[: steps - 1]], embeds)[len(prompt) - 1 :]


@pytest.mark.parametrize("case", CASES)
def test_logits(golden, model, case) -> None:
    close(logits_of(golden, model, case), golden[f"{case}.logits"])


def test_logits_of_every_position_of_a_prompt(golden, model) -> None:
    ids = golden["w1.auto.prompt_ids"].tolist()
    close(logits_after(model, ids, golden["w1.audio_embeds"]), golden["w1.auto.prefill_logits"])


def test_logits_of_the_references_bug(golden, model, generate) -> None:
    close(logits_of(golden, model, "w3.auto", "_fullattn"), golden["w3.auto.logits_fullattn"])
    ids, embeds = golden["w3.auto.prompt_ids"], golden["w3.audio_embeds_fullattn"]
    assert_written(generate(model, ids, embeds), golden["w3.auto.tokens_fullattn"], model.config.stop_ids)


def assert_written(found: tuple[list[int], str], want: np.ndarray, stops: tuple[int, ...]) -> None:
    tokens, reason = found
    ended = int(want[-1]) in stops
    assert tokens == want[: len(want) - ended].tolist()
    assert reason == ("stop" if ended else "length")


@pytest.mark.parametrize("options", [{}, {"prefill_chunk": 7, "page_size": 4}], ids=["whole", "in pieces"])
@pytest.mark.parametrize("case", [case for case in CASES if case != "w2.stop"])
def test_tokens(golden, meta, model, tokenizer, generate, case, options) -> None:
    ids, embeds = golden[f"{case}.prompt_ids"], golden[f"{sound(case)}.audio_embeds"]
    want = golden[f"{case}.tokens"]
    assert_written(generate(model, ids, embeds, options=options), want, model.config.stop_ids)
    info = meta["info"][case]
    assert (len(want), int(want[-1]) in model.config.stop_ids) == (info["new_tokens"], info["ended_by_eos"])
    assert tokenizer.decode(want.tolist()) == info["text"]


def test_another_end_token(golden, meta, folders, model, generate) -> None:
    """The ids that end a generation come from the config, all of them."""
    stops = tuple(meta["info"]["w2.stop"]["eos_token_id_override"])
    config = model.config.model_copy(update={"stop_ids": (0, *stops)})
    other = AsrModel(config, device=model.device, dtype=model.dtype)
    for mine, known in zip(other.parameters(), model.parameters(), strict=True):
        mine.copy_(known.to_dense() if known.is_mkldnn else known)
    found = generate(other, golden["w2.stop.prompt_ids"], golden["w2.audio_embeds"])
    assert_written(found, golden["w2.stop.tokens"], stops)


def test_a_batch(golden, model, tokenizer, encoder, generate) -> None:
    """Two clips of different lengths at once. The reference pads on the left; here nothing is padded."""
    sounds = [golden["w2.mel"], golden["batch.mel_w1_in_batch"]]
    rows = zip(golden["batch.input_ids"], golden["batch.attention_mask"], strict=True)
    prompts = [ids[there.astype(bool)] for ids, there in rows]
    builder = PromptBuilder(tokenizer)
    assert prompts[0].tolist() == builder.build(positions_of(337))
    assert prompts[1].tolist() == builder.build(positions_of(83), language="en")
    sinks = [
        generate(model, ids, embeds, 12, wait=False)
        for ids, embeds in zip(prompts, encoder.encode(sounds), strict=True)
    ]
    for sink, want in zip(sinks, golden["batch.tokens"], strict=True):
        tokens, reason = sink.tokens()
        end = next((i for i, token in enumerate(want) if token in model.config.stop_ids), len(want))
        assert tokens == want[:end].tolist()
        assert reason == ("stop" if end < len(want) else "length")


def test_decoding_as_it_comes(golden, meta, tokenizer) -> None:
    for case in CASES:
        decoder, tokens = TextDecoder(tokenizer), golden[f"{case}.tokens"].tolist()
        pieces = [decoder.push(token) for token in tokens] + [decoder.finish()]
        assert "".join(pieces) == meta["info"][case]["text"]


def test_sixteen_at_once_equal_each_alone(golden, model, generate) -> None:
    jobs: list[tuple[str, dict[str, object]]] = []
    for i, case in enumerate([case for case in CASES if case != "w2.stop"] * 3):
        jobs.append((case, {"temperature": 1.0, "seed": i} if i % 3 else {}))
    jobs = jobs[:16]

    def run(case: str, sampling: dict[str, object], *, wait: bool) -> object:
        ids, embeds = golden[f"{case}.prompt_ids"], golden[f"{sound(case)}.audio_embeds"]
        return generate(model, ids, embeds, wait=wait, options={"prefix_cache": False}, **sampling)

    alone = [run(case, sampling, wait=True) for case, sampling in jobs]
    together = [run(case, sampling, wait=False) for case, sampling in jobs]
    assert [sink.tokens() for sink in together] == alone
    assert len({tuple(tokens) for tokens, _ in alone}) >= 12


def test_the_prefix_cache_tells_sounds_apart(golden, model, generate) -> None:
    """Same tokens, other embeddings: nothing of the one may serve the other."""
    ids, embeds = golden["w2.auto.prompt_ids"], golden["w2.audio_embeds"]
    first = generate(model, ids, embeds)
    other = generate(model, ids, embeds[::-1].copy())
    assert other != first
    assert generate(model, ids, embeds) == first
    assert generate(model, ids, embeds[::-1].copy(), options={"prefix_cache": False}) == other
