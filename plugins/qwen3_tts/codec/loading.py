"""The two halves of the codec, from ``speech_tokenizer/model.safetensors`` or with random weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

from omni.codecs import CheckpointWeights, RandomWeights, ShapeRecorder, WeightSource, compute_in_full
from omni.engines.torch import Checkpoint
from qwen3_tts.codec.config import FOLDER, CodecConfig, load_config
from qwen3_tts.codec.decoder import CodecDecoder
from qwen3_tts.codec.encoder import CodecEncoder

Half = TypeVar("Half", CodecDecoder, CodecEncoder)
_META = torch.device("meta")


def load_decoder(folder: Path, device: torch.device, dtype: torch.dtype = torch.float32) -> CodecDecoder:
    """The codes-to-waveform half of a checkpoint's folder.

    Raises:
        WeightsError: a file or a tensor is missing, or a shape does not fit; names it.
    """
    config = load_config(folder)
    return _load(folder, device, dtype, lambda w, d: CodecDecoder(w, config, d, dtype))


def load_encoder(folder: Path, device: torch.device, *, windowed: bool = False) -> CodecEncoder:
    """The waveform-to-codes half, float32.

    Raises:
        WeightsError: as :func:`load_decoder`.
    """
    config = load_config(folder)
    return _load(folder, device, torch.float32, lambda w, d: CodecEncoder(w, config, d, windowed=windowed))


def random_decoder(
    config: CodecConfig, seed: int, device: torch.device, dtype: torch.dtype = torch.float32
) -> CodecDecoder:
    compute_in_full(device, dtype)
    with torch.inference_mode():
        return CodecDecoder(RandomWeights(seed, device, dtype, _draw), config, device, dtype)


def random_encoder(config: CodecConfig, seed: int, device: torch.device) -> CodecEncoder:
    compute_in_full(device, torch.float32)
    with torch.inference_mode():
        return CodecEncoder(RandomWeights(seed, device, torch.float32, _draw), config, device, windowed=False)


def _load(
    folder: Path,
    device: torch.device,
    dtype: torch.dtype,
    build: Callable[[WeightSource, torch.device], Half],
) -> Half:
    compute_in_full(device, dtype)
    checkpoint = Checkpoint(folder / FOLDER)
    recorder = ShapeRecorder()
    build(recorder, _META)
    checkpoint.require(recorder.shapes)
    with torch.inference_mode():
        return build(CheckpointWeights(checkpoint, device, dtype), device)


def _draw(name: str, noise: Tensor) -> Tensor | None:
    leaf = name.rsplit(".", 1)[-1]
    if leaf in ("alpha", "beta"):
        return noise.mul_(0.1)
    if leaf == "scale":
        return noise.fill_(0.1)
    if leaf in ("embedding_sum", "embed_sum"):
        return noise
    if noise.dim() == 3 and noise.shape[0] == 1:
        # The last convolution: quiet noise, which nothing cuts off.
        return noise.mul_(0.005 * noise[0].numel() ** -0.5)
    return None
