"""The tiny checkpoints over HTTP: golden audio, what each kind of model offers, many at once, long texts."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from qwen_serving import Served, base64_of, wav_of

from omni import ReferenceAudio, SpeechRequest
from omni.codecs import decode_whole
from omni.messages import AudioChunk
from qwen3_tts.codec.decoder import CodecDecoder
from qwen3_tts.codec.loading import load_decoder
from qwen3_tts.prompts import PromptBuilder, frames_for

pytestmark = pytest.mark.xdist_group("qwen_http")

T1 = "Hello, this is a test of the speech system."
T2 = "其实我真的有发现，我是一个特别善于观察别人情绪的人。"
T3 = "Good morning, how are you today?"
WOMAN = "A young woman with a bright and clear voice."
SAID = "She said she would be here by noon."
FRAME = 1920
LSB = 2

RECIPES = {
    "base": "qwen3-tts-0.6b-base",
    "custom_voice": "qwen3-tts-0.6b-customvoice",
    "voice_design": "qwen3-tts-1.7b-voicedesign",
}

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "cv_en": ("custom_voice", {"input": T1, "voice": "Ryan", "language": "en"}),
    "cv_en_stream": (
        "custom_voice",
        {"input": T1, "voice": "Ryan", "language": "English", "non_streaming_mode": False},
    ),
    "cv_en_norep": ("custom_voice", {"input": T1, "voice": "ryan", "language": "en", "repetition_penalty": 1.0}),
    "cv_zh_dialect": ("custom_voice", {"input": T2, "voice": "dylan", "language": "zh"}),
    "cv_auto": ("custom_voice", {"input": T1, "voice": "serena"}),
    "cv_eos": ("custom_voice", {"input": T3, "voice": "vivian", "language": "en"}),
    "vd": ("voice_design", {"input": T1, "instructions": WOMAN, "language": "en"}),
    "vd_stream_auto": ("voice_design", {"input": T1, "instructions": WOMAN, "non_streaming_mode": False}),
    "vd_noinstruct": ("voice_design", {"input": T2, "language": "zh"}),
    "base_xvec_stream": ("base", {"input": T1, "language": "en", "ref": ""}),
    "base_xvec": ("base", {"input": T1, "language": "en", "ref": "", "non_streaming_mode": True}),
    "base_icl_stream": ("base", {"input": T1, "language": "en", "ref": "", "said": SAID}),
    "base_icl_stream_short": ("base", {"input": T1, "language": "en", "ref": "_short", "said": SAID}),
    "base_icl": ("base", {"input": T1, "ref": "", "said": SAID, "non_streaming_mode": True}),
}


@pytest.fixture(scope="module")
def start() -> Iterator[Callable[..., Served]]:
    """``start(recipe, folder, sets)``, once for equal arguments."""
    running: dict[str, Served] = {}

    def begin(recipe: str, folder: Path | None = None, sets: tuple[str, ...] = ()) -> Served:
        key = repr((recipe, folder, sets))
        if key not in running:
            running[key] = Served(recipe, folder, sets)
        return running[key]

    yield begin
    for one in running.values():
        one.close()


@pytest.fixture(scope="module")
def served(start, folders) -> Callable[[str], Served]:
    return lambda kind: start(RECIPES[kind], folders[kind])


@pytest.fixture(scope="module")
def decoder(folders) -> CodecDecoder:
    return load_decoder(folders["base"], torch.device("cpu"))


def reference_of(golden: dict[str, torch.Tensor], ref: str) -> bytes:
    return wav_of(golden[f"base.ref{ref}_wav24k_int16"].numpy())


@pytest.mark.parametrize("case", CASES)
def test_golden_audio(served, golden, decoder, case: str) -> None:
    kind, fields = CASES[case]
    fields = {"temperature": 0, **fields}
    expected = golden[f"{case}.codes"].t()
    ref, said = fields.pop("ref", None), fields.pop("said", "")
    if ref is not None:
        fields["references"] = [{"audio": base64_of(reference_of(golden, ref)), "text": said}]
    before = golden[f"base.ref{ref}_codes"].t() if said else expected[:, :0]
    if case not in ("cv_eos", "base_xvec_stream"):
        fields["max_new_tokens"] = expected.shape[1]
    found = served(kind).speak(**fields)
    wave = decode_whole(decoder, torch.cat((before, expected), 1)[None])[0][before.shape[1] * FRAME :]
    if f"{case}.wav" in golden:
        wave = golden[f"{case}.wav"]
    want = np.clip(np.rint(wave.numpy() * 32768), -32768, 32767)
    assert len(found) == len(want)
    assert np.abs(found - want).max() <= LSB


def test_what_each_kind_offers(served) -> None:
    voices = ["vivian", "serena", "uncle_fu", "dylan", "eric", "ryan", "aiden", "ono_anna", "sohee"]
    task = served("custom_voice").pipeline.recipe.task
    assert [voice.id for voice in task.voices] == voices
    assert set(task.languages) == {"auto", "zh", "en", "fr", "de", "it", "ja", "ko", "pt", "ru", "es"}
    assert not task.instructions
    assert not task.cloning
    assert served("base").pipeline.recipe.task.cloning
    assert served("voice_design").pipeline.recipe.task.instructions


@pytest.mark.parametrize(
    ("kind", "fields", "param"),
    [
        ("custom_voice", {"instructions": "Whisper."}, "instructions"),
        ("custom_voice", {"references": [{"audio": "UklGRg=="}]}, "references"),
        ("custom_voice", {"voice": "mara"}, "voice"),
        ("custom_voice", {"temperature": 0, "subtalker_temperature": 0.9}, "subtalker_temperature"),
        ("voice_design", {"voice": "vivian"}, "voice"),
        ("voice_design", {"chunk_length": 100}, "chunk_length"),
        ("voice_design", {"references": [{"audio": "UklGRg=="}]}, "references"),
        ("base", {}, "references"),
        ("base", {"instructions": "Whisper."}, "instructions"),
        ("base", {"references": [{"audio": "UklGRg==", "text": "So."}]}, "references[0].audio"),
    ],
)
def test_fields_of_another_kind_are_refused(served, kind: str, fields: dict[str, Any], param: str) -> None:
    assert served(kind).refusal(input=T1, **fields)["param"] == param


def changed(folder: Path, target: Path, **talker: Any) -> Path:
    """A copy of a checkpoint whose ``config.json`` says something else; keys of the root have no dot."""
    shutil.copytree(folder, target)
    config = json.loads((target / "config.json").read_text())
    for name, value in talker.items():
        (config["talker_config"] if name in config["talker_config"] else config)[name] = value
    (target / "config.json").write_text(json.dumps(config))
    return target


def test_the_larger_model_takes_instructions(start, folders, golden, decoder, tmp_path_factory) -> None:
    folder = changed(folders["custom_voice"], tmp_path_factory.mktemp("large") / "ckpt", tts_model_size="1b7")
    served = start(RECIPES["custom_voice"], folder)
    fields = {"input": T1, "voice": "ryan", "language": "en", "instructions": "Very happy.", "temperature": 0}
    found = served.speak(**fields, max_new_tokens=25)
    wave = decode_whole(decoder, golden["cv_instruct.codes"].t()[None])[0]
    assert np.abs(found - np.rint(wave.numpy() * 32768)).max() <= LSB


def test_a_checkpoint_with_voices_of_its_own(start, folders, tmp_path_factory) -> None:
    folder = changed(
        folders["custom_voice"], tmp_path_factory.mktemp("tuned") / "ckpt", spk_id={"mara": 1080}, spk_is_dialect={}
    )
    served = start(RECIPES["custom_voice"], folder)
    assert served.get("/v1/audio/voices")["voices"][0]["id"] == "mara"
    fields = {"input": T3, "temperature": 0, "max_new_tokens": 2}
    assert np.array_equal(served.speak(**fields, voice="mara"), served.speak(**fields))
    assert served.refusal(**fields, voice="vivian")["param"] == "voice"


def test_the_kind_is_the_checkpoints_not_the_recipes(start, folders) -> None:
    served = start(RECIPES["base"], folders["custom_voice"])
    assert len(served.speak(input=T3, voice="ryan", temperature=0, max_new_tokens=2)) == 2 * FRAME
    assert served.refusal(input=T3, references=[{"audio": "UklGRg=="}])["param"] == "references"


# Streaming, seeds, batches --------------------------------------------------------------------------------------


def request(text: str, seed: int | None = None, **params: Any) -> SpeechRequest:
    return SpeechRequest(text=text, voice="ryan", language="en", seed=seed, params=params)


def test_the_first_frame_leaves_at_once_and_control_tokens_are_text(served) -> None:
    (chunks,) = served("custom_voice").chunks([request(f"{T1}<|im_end|>", seed=1, max_new_tokens=9)])
    assert [len(chunk.samples) // FRAME for chunk in chunks if len(chunk.samples)][:3] == [1, 2, 4]
    (plain,) = served("custom_voice").sound(request(T1, seed=1, max_new_tokens=9))
    assert not np.array_equal(plain, np.concatenate([chunk.samples for chunk in chunks]))


def test_sixteen_at_once_equal_each_alone(served, golden) -> None:
    clone = ReferenceAudio(audio=np.frombuffer(reference_of(golden, "_short"), np.uint8), text=SAID)
    texts = (T1, T2, T3, SAID)
    for kind, more in (("custom_voice", {"voice": "ryan"}), ("base", {"references": [clone]})):
        requests = [
            SpeechRequest(
                text=texts[i % 4],
                seed=100 + i,
                params={
                    "max_new_tokens": 4 + i % 5,
                    "temperature": (0.0, 0.9, 1.3)[i % 3],
                    "top_k": (50, 0)[i % 2],
                },
                **more,
            )
            for i in range(16)
        ]
        together = served(kind).sound(*requests)
        for i, one in enumerate(requests):
            (alone,) = served(kind).sound(one)
            assert len(together[i]) == len(alone)
            assert np.abs(together[i] - alone).max() < 1e-4


def test_seeds(served) -> None:
    one, again, other = served("custom_voice").sound(
        request(T1, 5, max_new_tokens=6), request(T1, 5, max_new_tokens=6), request(T1, 6, max_new_tokens=6)
    )
    assert np.abs(one - again).max() < 1e-4
    assert np.abs(one - other).max() > 1e-3


def reason(chunks: list[AudioChunk]) -> str | None:
    return [chunk.finish_reason for chunk in chunks if chunk.finish_reason is not None][-1]


def test_a_long_text_is_its_pieces_one_after_the_other(served) -> None:
    sentences = [
        "The old keeper climbed the narrow stairs of the tower.",
        "Bread and coffee are reasons to get up.",
    ]
    limits = {"max_new_tokens": 7, "chunk_length": 60}
    whole, *parts = served("custom_voice").sound(
        request(" ".join(sentences), 9, **limits), *(request(s, 9 + i, **limits) for i, s in enumerate(sentences))
    )
    assert len(whole) == sum(map(len, parts))
    assert np.abs(whole - np.concatenate(parts)).max() < 1e-4


@pytest.mark.parametrize("parallel", [1, 4])
def test_pieces_of_a_cloned_voice_each_go_on_from_it(start, folders, golden, parallel: int) -> None:
    served = start(RECIPES["base"], folders["base"], (f"ar.parallel_items={parallel}",))
    clone = ReferenceAudio(audio=np.frombuffer(reference_of(golden, ""), np.uint8), text=SAID)
    sentences = [f"This is the sentence with the number {i} in a text." for i in range(3)]

    def say(text: str, seed: int) -> SpeechRequest:
        limits = {"max_new_tokens": 5, "chunk_length": 60}
        return SpeechRequest(text=text, seed=seed, references=[clone], params=limits)

    whole, *parts = served.sound(say(" ".join(sentences), 3), *(say(s, 3 + i) for i, s in enumerate(sentences)))
    assert len(whole) == sum(map(len, parts))
    assert np.abs(whole - np.concatenate(parts)).max() < 1e-4


def test_a_runaway_ends_and_says_so(start, builders: dict[str, PromptBuilder]) -> None:
    """Random weights of this size never end by themselves."""
    served = start("qwen3-tts-random")
    (chunks,) = served.chunks([SpeechRequest(text="Hi", seed=1)])
    assert sum(len(chunk.samples) for chunk in chunks) == frames_for(2) * FRAME
    assert reason(chunks) == "length"


def test_a_piece_that_was_cut_is_the_requests_reason(served) -> None:
    both = request(f"{T3} {T3}", 1, temperature=0.0, chunk_length=50, max_new_tokens=3)
    (chunks,) = served("custom_voice").chunks([both])
    assert reason(chunks) == "length"
    # The golden case cv_eos, alone and after a piece that is cut.
    fields: dict[str, Any] = {"voice": "vivian", "language": "en", "params": {"temperature": 0.0, "chunk_length": 50}}
    ends, cut = served("custom_voice").chunks(
        [
            SpeechRequest(text=T3, **fields),
            SpeechRequest(text=f"{T1} {T3}", **{**fields, "params": {**fields["params"], "max_new_tokens": 22}}),
        ]
    )
    assert reason(ends) == "stop"
    assert sum(len(chunk.samples) for chunk in cut) == (22 + 19) * FRAME
    assert reason(cut) == "length"
