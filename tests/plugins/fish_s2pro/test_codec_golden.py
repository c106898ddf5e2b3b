"""Every array that the reference's codec left, in both directions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fish_s2pro.codec.decoder import CodecDecoder
from fish_s2pro.codec.encoder import CodecEncoder
from fish_s2pro.codec.loading import load_decoder, load_encoder
from omni.audio import encode_all
from omni.codecs import Step, StreamState

FLOAT = 1e-4
AUDIO = 2e-4
LENGTHS = (1, 1024, 2047, 2048, 2049, 10257, 24573)


@pytest.fixture(scope="module")
def encoder(ckpt: Path) -> CodecEncoder:
    return load_encoder(ckpt)


@pytest.fixture(scope="module")
def decoder(ckpt: Path) -> CodecDecoder:
    return load_decoder(ckpt)


@pytest.fixture(autouse=True)
def _no_gradients() -> Any:
    with torch.inference_mode():
        yield


def one_step(frames: int) -> Step:
    return Step(StreamState(1, frames, torch.device("cpu"), torch.float32), [0], [0])


def close(ours: Tensor, theirs: Tensor, tolerance: float) -> None:
    """The tolerance holds for values up to 10; the decoder's inner layers reach 100, where both implementations are
    equally far from a float64 run."""
    assert ours.shape == theirs.shape
    scale = max(1.0, theirs.abs().max().item() / 10)
    torch.testing.assert_close(ours, theirs, atol=tolerance * scale, rtol=0.0)


@pytest.mark.parametrize("samples", LENGTHS)
def test_encode(encoder: CodecEncoder, golden: dict[str, Tensor], meta: dict[str, Any], samples: int) -> None:
    codes = encoder.encode(golden["enc.wav"][:samples])

    expected = golden[f"enc.{samples}.codes"]
    assert codes.shape == expected.shape
    clear = golden[f"enc.{samples}.margin"] > FLOAT
    assert clear.all()
    assert torch.equal(codes.int()[clear], expected[clear])
    described = {case["samples"]: case["frames"] for case in meta["codec"]["encode"]}
    assert codes.shape[1] == described[samples]


@pytest.mark.parametrize("samples", LENGTHS)
def test_projected_latents(encoder: CodecEncoder, golden: dict[str, Tensor], samples: int) -> None:
    frames = -(-samples // encoder.config.frame_samples)
    wave = torch.zeros(1, 1, frames * encoder.config.frame_samples)
    wave[..., :samples] = golden["enc.wav"][:samples]
    rest = encoder.latents(wave, one_step(frames)).transpose(1, 2)
    projected = []
    for codebook, codes in zip(encoder.quantizer.codebooks, golden[f"enc.{samples}.codes"], strict=True):
        projected.append(codebook.project(rest)[0].T)
        rest = rest - codebook.rebuild(codes[None].long())
    close(torch.cat(projected), golden[f"enc.{samples}.latents"], FLOAT)


@pytest.mark.parametrize("samples", [2048, 10257])
def test_encoder_layer_by_layer(encoder: CodecEncoder, golden: dict[str, Tensor], samples: int) -> None:
    frames = -(-samples // 2048)
    wave = torch.zeros(1, 1, frames * 2048)
    wave[..., :samples] = golden["enc.wav"][:samples]
    step = one_step(frames)
    outputs = [encoder.stem(wave, step)]
    for block in encoder.blocks:
        outputs.append(block(outputs[-1], step))
    outputs.append(encoder.snake(outputs[-1]))
    outputs.append(encoder.head(outputs[-1], step))
    for i, output in enumerate(outputs):
        close(output[0], golden[f"enc.{samples}.block{i}"], FLOAT)
    x = outputs[-1]
    for downsample in encoder.downsamples:
        x = downsample(x, step)
    close(x[0], golden[f"enc.{samples}.downsample"], FLOAT)
    x = encoder.pre(x, step)
    close(x[0], golden[f"enc.{samples}.pre"], FLOAT)
    parts = [
        codebook.rebuild(codes[None].long())[0].T
        for codebook, codes in zip(encoder.quantizer.codebooks, golden[f"enc.{samples}.codes"], strict=True)
    ]
    close(parts[0], golden[f"enc.{samples}.semantic_zq"], FLOAT)
    close(torch.stack(parts[1:]).sum(0), golden[f"enc.{samples}.residual_zq"], FLOAT)


@pytest.mark.parametrize("frames", [1, 2, 5, 24, 40])
def test_decode(decoder: CodecDecoder, golden: dict[str, Tensor], frames: int) -> None:
    codes = golden[f"dec.{frames}.codes"].long()[None]
    step = one_step(frames)

    z = decoder.dequantizer(codes)
    close(z[0], golden[f"dec.{frames}.semantic_z"] + golden[f"dec.{frames}.residual_z"], FLOAT)
    close(decoder.post(z, step)[0], golden[f"dec.{frames}.post"], FLOAT)
    close(decoder.decode(codes)[0], golden[f"dec.{frames}.audio"], AUDIO)


def test_decoder_layer_by_layer(decoder: CodecDecoder, golden: dict[str, Tensor]) -> None:
    step = one_step(5)
    x = golden["dec.5.post"][None]
    for i, upsample in enumerate(decoder.upsamples):
        x = upsample(x, step)
        close(x[0], golden[f"dec.5.upsample{i}"], FLOAT)
    x = decoder.stem(x, step)
    close(x[0], golden["dec.5.dec0"], FLOAT)
    first = decoder.blocks[0]
    y = first.snake(x)
    close(y[0], golden["dec.5.dec1.snake"], FLOAT)
    apart = one_step(5)
    y = first.up(y, apart)
    close(y[0], golden["dec.5.dec1.convt"], FLOAT)
    close(first.residuals[0](y, apart)[0], golden["dec.5.dec1.res0"], FLOAT)
    # Each block takes the reference's input: from block to block this checkpoint multiplies float noise by five.
    for i, block in enumerate(decoder.blocks, start=1):
        close(block(golden[f"dec.5.dec{i - 1}"][None], step)[0], golden[f"dec.5.dec{i}"], FLOAT)
    x = decoder.snake(golden["dec.5.dec4"][None])
    close(x[0], golden["dec.5.dec5"], FLOAT)
    x = decoder.head(x, step)
    close(x[0], golden["dec.5.dec6"], FLOAT)
    close(x[0].tanh(), golden["dec.5.dec7"], FLOAT)


def test_codes_out_of_range_mean_the_last_entry(decoder: CodecDecoder, golden: dict[str, Tensor]) -> None:
    codes = golden["dec.clamp.codes"].long()
    given = codes.clone()

    audio = decoder.decode(codes[None])[0]

    close(audio, golden["dec.clamp.audio"], AUDIO)
    assert torch.equal(codes, given), "the caller's codes were changed, as the reference does"
    assert not torch.equal(codes, golden["dec.clamp.codes_after"].long())
    assert torch.equal(audio, decoder.decode(golden["dec.clamp.codes_after"].long()[None])[0])


def test_streams_of_unequal_length_in_one_batch(decoder: CodecDecoder, golden: dict[str, Tensor]) -> None:
    codes = torch.zeros(2, 4, 5, dtype=torch.long)
    codes[0] = golden["dec.5.codes"]
    codes[1, :, :2] = golden["dec.2.codes"]

    audio = decoder.decode(codes)

    close(audio, golden["dec.batch.audio"], AUDIO)
    close(audio[0], golden["dec.5.audio"], AUDIO)
    close(audio[1, : 2 * 2048], golden["dec.2.audio"], AUDIO)


@pytest.mark.parametrize("case", ["plain", "one_ref"])
def test_generated_codes_to_pcm(decoder: CodecDecoder, golden: dict[str, Tensor], case: str) -> None:
    audio = decoder.decode(golden[f"prompt.{case}.0.codes"].long()[None])[0]

    close(audio, golden[f"e2e.{case}.audio"], AUDIO)
    pcm = np.frombuffer(encode_all("pcm", audio.numpy(), 44100), "<i2")
    # The reference truncates toward zero, we round: one step apart at most, one more for float noise.
    assert np.abs(pcm.astype(int) - golden[f"e2e.{case}.pcm16"].numpy().astype(int)).max() <= 2
