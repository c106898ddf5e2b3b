"""A voice as one vector: ECAPA-TDNN on a mel spectrogram (Desplanques et al. 2020)."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from omni.codecs import CheckpointWeights, RandomWeights, ShapeRecorder, WeightSource, compute_in_full
from omni.engines.torch import Checkpoint
from qwen3_tts.config import SpeakerSection
from qwen3_tts.mel import LogMel

_PREFIX = "speaker_encoder"
_MIN_SAMPLES = 1280
"""Shorter audio has too few frames to be reflected at its ends."""
MIN_SECONDS = 0.06


class _Conv:
    """Keeps the length: both ends are reflected."""

    def __init__(
        self, weights: WeightSource, name: str, inputs: int, outputs: int, kernel: int = 1, dilation: int = 1
    ) -> None:
        self.weight = weights.take(f"{_PREFIX}.{name}.weight", outputs, inputs, kernel)
        self.bias = weights.take(f"{_PREFIX}.{name}.bias", outputs)
        self.dilation = dilation
        self.side = (kernel - 1) * dilation // 2

    def __call__(self, x: Tensor) -> Tensor:
        if self.side:
            x = F.pad(x, (self.side, self.side), mode="reflect")
        return F.conv1d(x, self.weight, self.bias, dilation=self.dilation)


class _Block:
    """Squeeze-excitation Res2Net: groups of channels, each of which takes in what the one before it gave."""

    def __init__(self, weights: WeightSource, index: int, config: SpeakerSection) -> None:
        channels, scale = config.enc_channels[index], config.enc_res2net_scale
        kernel, dilation = config.enc_kernel_sizes[index], config.enc_dilations[index]
        part, squeezed, prefix = channels // scale, config.enc_se_channels, f"blocks.{index}"
        self.scale = scale
        self.inward = _Conv(weights, f"{prefix}.tdnn1.conv", channels, channels)
        self.parts = [
            _Conv(weights, f"{prefix}.res2net_block.blocks.{i}.conv", part, part, kernel, dilation)
            for i in range(scale - 1)
        ]
        self.outward = _Conv(weights, f"{prefix}.tdnn2.conv", channels, channels)
        self.squeeze = _Conv(weights, f"{prefix}.se_block.conv1", channels, squeezed)
        self.excite = _Conv(weights, f"{prefix}.se_block.conv2", squeezed, channels)

    def __call__(self, x: Tensor) -> Tensor:
        first, *others = self.inward(x).relu_().chunk(self.scale, dim=1)
        done = [first]
        for i, (part, conv) in enumerate(zip(others, self.parts, strict=True)):
            done.append(conv(part + done[-1] if i else part).relu_())
        y = self.outward(torch.cat(done, dim=1)).relu_()
        gain = self.excite(self.squeeze(y.mean(2, keepdim=True)).relu_()).sigmoid_()
        return y * gain + x


def _statistics(x: Tensor, share: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and deviation over time, each ``(1, channels, 1)``; the shares of the frames sum to 1."""
    mean = (share * x).sum(2, keepdim=True)
    deviation = (share * (x - mean).square()).sum(2, keepdim=True).clamp_(min=1e-12).sqrt_()
    return mean, deviation


class SpeakerEncoder:
    """float32 on every device."""

    def __init__(self, weights: WeightSource, config: SpeakerSection, device: torch.device) -> None:
        self.device = device
        channels, last = config.enc_channels, config.enc_channels[-1]
        kernels, dilations = config.enc_kernel_sizes, config.enc_dilations
        self.mel = LogMel(config.mel_dim, device) if device.type != "meta" else None
        self.stem = _Conv(weights, "blocks.0.conv", config.mel_dim, channels[0], kernels[0], dilations[0])
        self.blocks = [_Block(weights, index, config) for index in range(1, len(channels) - 1)]
        self.join = _Conv(weights, "mfa.conv", last, last, kernels[-1], dilations[-1])
        self.attend = _Conv(weights, "asp.tdnn.conv", 3 * last, config.enc_attention_channels)
        self.weigh = _Conv(weights, "asp.conv", config.enc_attention_channels, last)
        self.final = _Conv(weights, "fc", 2 * last, config.enc_dim)

    def stages(self, mel: Tensor) -> list[Tensor]:
        """``(bins, frames)`` to what each block gives, ``(1, channels, frames)``."""
        x = self.stem(mel[None]).relu_()
        found = [x]
        for block in self.blocks:
            found.append(block(found[-1]))
        return found

    @torch.inference_mode()
    def encode(self, wave: Tensor) -> Tensor:
        """Mono float32 ``(samples,)`` at 24 kHz to ``(enc_dim,)``.

        Raises:
            ValueError: under :data:`MIN_SECONDS`.
        """
        if wave.shape[0] < _MIN_SAMPLES:
            raise ValueError(f"a voice needs {_MIN_SAMPLES} samples")
        assert self.mel is not None
        found = self.stages(self.mel(wave.to(self.device)))
        x = self.join(torch.cat(found[1:], dim=1)).relu_()
        even = torch.full_like(x[:, :1], 1.0 / x.shape[2])
        mean, deviation = _statistics(x, even)
        context = torch.cat((x, mean.expand_as(x), deviation.expand_as(x)), dim=1)
        share = self.weigh(self.attend(context).relu_().tanh_()).softmax(2)
        return self.final(torch.cat(_statistics(x, share), dim=1))[0, :, 0]


def load_speaker_encoder(folder: Path, config: SpeakerSection, device: torch.device) -> SpeakerEncoder:
    """Raises :class:`WeightsError` if a tensor is missing or misshapen; names it."""
    compute_in_full(device, torch.float32)
    checkpoint = Checkpoint(folder)
    recorder = ShapeRecorder()
    SpeakerEncoder(recorder, config, torch.device("meta"))
    checkpoint.require(recorder.shapes)
    with torch.inference_mode():
        return SpeakerEncoder(CheckpointWeights(checkpoint, device, torch.float32), config, device)


def random_speaker_encoder(config: SpeakerSection, seed: int, device: torch.device) -> SpeakerEncoder:
    compute_in_full(device, torch.float32)
    with torch.inference_mode():
        return SpeakerEncoder(RandomWeights(seed, device, torch.float32), config, device)
