"""Log mel spectrograms as the speaker encoder was trained on."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

SAMPLE_RATE = 24_000
_FFT, _HOP, _TOP = 1024, 256, 12_000.0
_LINEAR, _START, _STEP = 200.0 / 3, 1000.0, np.log(6.4) / 27
"""Slaney's scale: Hz per mel up to 1 kHz, logarithmic above."""


def _mel(hertz: np.ndarray) -> np.ndarray:
    above = _START / _LINEAR + np.log(np.maximum(hertz, _START) / _START) / _STEP
    return np.asarray(np.where(hertz < _START, hertz / _LINEAR, above))


def _hertz(mel: np.ndarray) -> np.ndarray:
    start = _START / _LINEAR
    above = _START * np.exp(_STEP * (np.maximum(mel, start) - start))
    return np.asarray(np.where(mel < start, mel * _LINEAR, above))


def mel_filters(bins: int) -> np.ndarray:
    """Triangles of equal area over the bins of the transform: float32 ``(bins, 513)``. Source: Slaney 1998."""
    edges = _hertz(np.linspace(0.0, _mel(np.array(_TOP)), bins + 2))
    frequencies = np.linspace(0.0, SAMPLE_RATE / 2, _FFT // 2 + 1)
    distance = edges[:, None] - frequencies[None]
    widths = np.diff(edges)[:, None]
    rising, falling = -distance[:-2] / widths[:-1], distance[2:] / widths[1:]
    height = 2.0 / (edges[2:] - edges[:-2])
    return np.asarray(np.maximum(0.0, np.minimum(rising, falling)) * height[:, None], np.float32)


class LogMel:
    """``(samples,)`` at 24 kHz to ``(bins, frames)``; a frame every 256 samples."""

    def __init__(self, bins: int, device: torch.device) -> None:
        self._filters = torch.from_numpy(mel_filters(bins)).to(device)
        self._window = torch.hann_window(_FFT, device=device)

    def __call__(self, wave: Tensor) -> Tensor:
        side = (_FFT - _HOP) // 2
        padded = F.pad(wave[None], (side, side), mode="reflect")
        parts = torch.stft(padded, _FFT, _HOP, window=self._window, center=False, return_complex=True)[0]
        magnitude = (parts.real.square() + parts.imag.square() + 1e-9).sqrt()
        return (self._filters @ magnitude).clamp_(min=1e-5).log_()
