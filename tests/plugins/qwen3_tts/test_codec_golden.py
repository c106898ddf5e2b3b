"""Every array that the reference's codec and speaker encoder left."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from omni.codecs import Step, StreamState, decode_whole
from qwen3_tts.codec.decoder import CodecDecoder
from qwen3_tts.codec.encoder import CodecEncoder
from qwen3_tts.codec.loading import load_decoder, load_encoder
from qwen3_tts.config import load_config
from qwen3_tts.speaker import SpeakerEncoder, load_speaker_encoder

CPU = torch.device("cpu")
FLOAT = {"atol": 1e-4, "rtol": 0.0}
AUDIO = {"atol": 2e-5, "rtol": 0.0}
FRAME = 1920


@pytest.fixture(scope="module")
def decoder(folders: dict[str, Path]) -> CodecDecoder:
    return load_decoder(folders["base"], CPU)


@pytest.fixture(scope="module")
def encoder(folders: dict[str, Path]) -> CodecEncoder:
    return load_encoder(folders["base"], CPU)


@pytest.fixture(scope="module")
def speaker(folders: dict[str, Path]) -> SpeakerEncoder:
    config = load_config(folders["base"]).speaker
    assert config is not None
    return load_speaker_encoder(folders["base"], config, CPU)


@pytest.fixture(autouse=True)
def _no_gradients() -> Iterator[None]:
    with torch.inference_mode():
        yield


def wave_of(golden: dict[str, Tensor], name: str) -> Tensor:
    return golden[name].float() / 32768


def one_step(frames: int) -> Step:
    return Step(StreamState(1, frames, CPU, torch.float32), [0], [0])


# Decoder --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("frames", [1, 2, 5, 26])
def test_decode(decoder, golden, frames: int) -> None:
    codes = golden["codec.decode_codes_330"].t()[None, :, :frames]
    torch.testing.assert_close(decode_whole(decoder, codes)[0], golden[f"codec.decode_{frames}"], **AUDIO)


def test_decode_beyond_every_window(decoder, golden) -> None:
    """The reference decodes 300 frames at a time and forgets all but 25 of them, which can be heard after the seam."""
    whole = decode_whole(decoder, golden["codec.decode_codes_330"].t()[None])[0]
    torch.testing.assert_close(whole[296 * FRAME :], golden["codec.decode_330_full_from_frame_296"], **AUDIO)
    seam = golden["codec.decode_330_ref_chunked_from_frame_296"]
    torch.testing.assert_close(whole[296 * FRAME : 300 * FRAME], seam[: 4 * FRAME], **AUDIO)
    assert (whole[300 * FRAME :] - seam[4 * FRAME :]).abs().max() > 1e-4
    rms = whole.view(330, FRAME).square().mean(1).sqrt()
    torch.testing.assert_close(rms, golden["codec.decode_330_ref_chunked_rms_per_frame"], atol=1e-5, rtol=0.0)


def test_decode_of_a_batch(decoder, golden) -> None:
    codes = golden["codec.decode_codes_330"].t()
    padded = torch.zeros(2, 16, 26, dtype=torch.int64)
    padded[0, :, :10], padded[1] = codes[:, 40:50], codes[:, :26]
    found = decode_whole(decoder, padded)
    torch.testing.assert_close(found[0, : 10 * FRAME], golden["codec.decode_batch_10_with_26"], **AUDIO)
    torch.testing.assert_close(found[1], golden["codec.decode_26"], **AUDIO)


def test_the_reference_in_chunks_of_eight_frames(decoder, golden) -> None:
    """Its chunked decode is a decode anew of each chunk behind three frames of context."""
    codes, pieces = golden["codec.decode_codes_330"].t()[None, :, :26], []
    for start in range(0, 26, 8):
        context = min(3, start)
        wave = decode_whole(decoder, codes[..., start - context : start + 8])[0]
        pieces.append(wave[context * FRAME :])
    torch.testing.assert_close(torch.cat(pieces), golden["codec.decode_26_chunk8_ctx3"], **AUDIO)


def test_decoder_layer_by_layer(decoder, golden) -> None:
    step = one_step(26)
    x = decoder.dequantizer(golden["codec.decode_codes_330"].t()[None, :, :26])
    torch.testing.assert_close(x[0], golden["codec.dec_quantized_26"], **FLOAT)
    x = decoder.pre(x, step)
    torch.testing.assert_close(x[0], golden["codec.dec_pre_conv_26"], **FLOAT)
    x = decoder.transformer(x, step)
    torch.testing.assert_close(x[0].t(), golden["codec.dec_transformer_26"], **FLOAT)
    torch.testing.assert_close(decoder.upsampled(x, step)[0], golden["codec.dec_upsampled_26"], **FLOAT)


@pytest.mark.parametrize("case", ["cv_en", "cv_eos", "base_icl_stream"])
def test_speech_of_generated_codes(decoder, golden, case: str) -> None:
    codes = golden[f"{case}.codes"].t()
    reference = golden["base.ref_codes"].t() if case == "base_icl_stream" else codes[:, :0]
    whole = decode_whole(decoder, torch.cat((reference, codes), 1)[None])[0]
    torch.testing.assert_close(whole[reference.shape[1] * FRAME :], golden[f"{case}.wav"], **AUDIO)


# Encoder --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("samples", [1, 1919, 1920, 1921, 24000, 50001, 288777])
def test_encode(encoder, golden, samples: int) -> None:
    codes = encoder.encode(wave_of(golden, "codec.wav_long_int16")[:samples])
    assert torch.equal(codes.t(), golden[f"codec.encode_{samples}"])


@pytest.mark.parametrize("name", ["ref", "ref_short"])
def test_encode_references(encoder, golden, name: str) -> None:
    assert torch.equal(encoder.encode(wave_of(golden, f"base.{name}_wav24k_int16")).t(), golden[f"base.{name}_codes"])


def test_a_clip_in_a_batch_of_the_reference_ends_differently(encoder, golden) -> None:
    """There a shorter clip is filled up with silence, which its last frame hears. Here it never shares a batch."""
    codes = encoder.encode(wave_of(golden, "codec.wav_long_int16")[:24500]).t()
    assert torch.equal(codes, golden["codec.encode_single_24500"])
    batched = golden["codec.encode_batch_24500_with_50001"]
    assert torch.equal(codes[:-1], batched[:-1])
    assert not torch.equal(codes[-1], batched[-1])


def test_encode_with_a_window(folders, encoder, golden) -> None:
    """As transformers 5.24 does with the same weights: no difference up to 10 s, some codes beyond."""
    windowed = load_encoder(folders["base"], CPU, windowed=True)
    wave = wave_of(golden, "codec.wav_long_int16")
    short = encoder.config.encoder.sliding_window * 960
    assert torch.equal(windowed.encode(wave[:short]), encoder.encode(wave[:short]))
    assert torch.equal(windowed.encode(wave).t(), golden["mimi.encode_288777_windowed"])
    assert not torch.equal(golden["mimi.encode_288777_windowed"], golden["codec.encode_288777"])


def test_the_given_windowed_codes_contradict_themselves(golden) -> None:
    """Why they are not what the windowed encoder is compared with: see the README beside them."""
    first = {n: golden[f"codec.encode_{n}_sliding_window"][0] for n in (24000, 50001, 288777)}
    assert not torch.equal(first[24000], first[50001]), "same first frame, fewer frames after it"
    plain = {n: golden[f"codec.encode_{n}"][0] for n in first}
    assert torch.equal(plain[24000], plain[288777])
    assert all((first[n] != plain[n]).sum() == 15 for n in first)


def test_encoder_layer_by_layer(encoder, golden) -> None:
    step = one_step(27)
    x = encoder.convolved(wave_of(golden, "codec.wav_long_int16")[None, None, :50001], step)
    torch.testing.assert_close(x[0], golden["codec.enc_conv_out_50001"], **FLOAT)
    x = encoder.transformed(x, step, 54)
    torch.testing.assert_close(x[0].t(), golden["codec.enc_transformer_out_50001"], **FLOAT)
    x = encoder.latents(x, step, first=True)
    torch.testing.assert_close(x[0], golden["codec.enc_latent_50001"], **FLOAT)
    assert torch.equal(encoder.quantizer(x[0].t()).t(), golden["codec.encode_50001"])


# Speaker --------------------------------------------------------------------------------------------------------


def test_speaker_vectors(speaker, golden) -> None:
    for clip, name in (("ref", "spk.embedding"), ("ref_short", "spk.embedding_short")):
        vector = speaker.encode(wave_of(golden, f"base.{clip}_wav24k_int16"))
        torch.testing.assert_close(vector, golden[name], **FLOAT)


def test_speaker_encoder_block_by_block(speaker, golden) -> None:
    mel = speaker.mel(wave_of(golden, "base.ref_wav24k_int16"))
    torch.testing.assert_close(mel.t(), golden["spk.mel"], **FLOAT)
    found = speaker.stages(golden["spk.mel"].t())
    torch.testing.assert_close(found[0][0], golden["spk.block0_out"], **FLOAT)
    torch.testing.assert_close(found[1][0], golden["spk.block1_out"], **FLOAT)


def test_shortest_voice(speaker) -> None:
    assert np.isfinite(speaker.encode(torch.randn(1280) * 0.1).numpy()).all()
    with pytest.raises(ValueError, match="1280 samples"):
        speaker.encode(torch.zeros(1279))
