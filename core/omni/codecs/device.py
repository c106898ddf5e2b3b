"""Where a model computes, and how exactly."""

from __future__ import annotations

import torch

from omni.errors import ConfigError


def device_of(name: str) -> torch.device:
    """``auto`` takes CUDA where there is one.

    Raises:
        ConfigError: this torch has no such device.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(f"torch cannot use the device {name!r}: {error}") from error


def compute_in_full(device: torch.device, dtype: torch.dtype) -> None:
    """torch lets cuDNN convolve float32 in TF32 by default: some percent of an encoder's codes flip, and samples depend
    on the batch. The switch is the process's; it is left off because threads cannot each have their own."""
    if device.type == "cuda" and dtype == torch.float32:
        torch.backends.cudnn.allow_tf32 = False
