"""The front end: Whisper's log-mel spectrogram with 128 bands, without its padding to 30 seconds."""

from __future__ import annotations

from functools import cache

import numpy as np
import torch

SAMPLE_RATE = 16_000
HOP = 160
WINDOW = 400
BANDS = 128
SHORTEST = WINDOW
"""Samples of the shortest clip that has features."""

_HZ_PER_MEL = 200.0 / 3
_LOG_FROM = 1000.0
_LOG_STEP = np.log(6.4) / 27.0


def _to_hz(mel: np.ndarray) -> np.ndarray:
    """Slaney's scale: linear up to 1 kHz, then logarithmic."""
    log_mel = _LOG_FROM / _HZ_PER_MEL
    return np.where(mel < log_mel, mel * _HZ_PER_MEL, _LOG_FROM * np.exp(_LOG_STEP * (mel - log_mel)))


@cache
def _filters() -> torch.Tensor:
    """Triangles of equal area, float32 ``(BANDS, WINDOW / 2 + 1)``, from 0 to 8 kHz."""
    top = _LOG_FROM / _HZ_PER_MEL + np.log(SAMPLE_RATE / 2 / _LOG_FROM) / _LOG_STEP
    edges = _to_hz(np.linspace(0.0, top, BANDS + 2))[:, None]
    bins = np.linspace(0.0, SAMPLE_RATE / 2, WINDOW // 2 + 1)[None, :]
    left, centre, right = edges[:-2], edges[1:-1], edges[2:]
    rising, falling = (bins - left) / (centre - left), (right - bins) / (right - centre)
    triangles = np.maximum(0.0, np.minimum(rising, falling)) * (2.0 / (right - left))
    return torch.from_numpy(triangles.astype(np.float32))


@cache
def _hann() -> torch.Tensor:
    return torch.hann_window(WINDOW, periodic=True)


def log_mel(samples: np.ndarray) -> np.ndarray:
    """Float32 ``(n,)`` at 16 kHz, n at least ``SHORTEST``, to float32 ``(BANDS, n // HOP)``.

    Power spectra of reflected frames, log10 floored at 1e-10 and at 8 below the clip's maximum, ``(x + 4) / 4``.
    """
    wave = torch.from_numpy(np.array(samples, np.float32))
    spectrum = torch.stft(wave, WINDOW, HOP, window=_hann(), center=True, pad_mode="reflect", return_complex=True)
    power = torch.view_as_real(spectrum[:, :-1]).square().sum(-1)
    found = (_filters() @ power).clamp_min_(1e-10).log10_()
    return np.asarray(found.clamp_min_(found.max() - 8.0).add_(4.0).div_(4.0))
