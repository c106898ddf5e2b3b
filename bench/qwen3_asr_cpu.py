"""Cost of a random Qwen3-ASR of about 200 M parameters on CPU, beside floors measured in the same run.

    python bench/qwen3_asr_cpu.py [--threads 1] [--steps 30] [--json FILE]

* decoding at batch 1 against the memory floor: bytes of weights that a token reads, over the read bandwidth of this
  machine now; at batch 8 and 16 against the step's matrix products alone, with the same kernels;
* the prompt of a clip of five seconds against its products alone, and the same clip again;
* the audio encoder against its products and convolutions alone; features in seconds of sound per second.

Steps and floors take turns and each figure is the best of its kind, since other work may share the machine. With one
thread the clock is the process's CPU time, which stands still while other work has the core.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from measuring import Line, Lockstep, Probe, Timer, memory, show_lines, write
from omni.engines.base import Prompt, SamplingParams
from omni.engines.torch import DecoderLayer, TorchEngine, linear, parse_options
from qwen3_asr.config import CHUNK_TOKENS, AsrConfig
from qwen3_asr.encoder import AudioEncoder, positions_of
from qwen3_asr.features import SAMPLE_RATE, log_mel
from qwen3_asr.loader import random_asr, random_encoder
from qwen3_asr.model import AUDIO, AsrModel
from qwen3_asr.prompts import PromptBuilder
from qwen3_asr.sizes import SIZES
from qwen3_asr.tokenizer import AsrTokenizer

SECONDS = 5.0


def sound(seconds: float, seed: int) -> np.ndarray:
    """Noise with the rhythm of syllables: float32 at 16 kHz."""
    rng = np.random.default_rng(seed)
    rhythm = 0.5 + 0.5 * np.sin(np.arange(int(seconds * SAMPLE_RATE)) / SAMPLE_RATE * 25 + seed)
    return (0.1 * rhythm * rng.normal(size=len(rhythm))).astype(np.float32)


def endless(model: AsrModel) -> AsrModel:
    """Every request runs as long as it is measured: nothing the model writes is an end."""
    model._stops = torch.full_like(model._stops, -1)
    return model


def prompt(tokenizer: AsrTokenizer, model: AsrModel, seconds: float, seed: int) -> Prompt:
    """That of a clip of so many seconds, whose embeddings are random."""
    positions = positions_of(int(seconds * 100))
    generator = torch.Generator().manual_seed(seed)
    embeds = torch.randn(positions, model.width, generator=generator)
    ids = np.array(PromptBuilder(tokenizer).build(positions, language="en"), np.int64)
    return Prompt(tokens=ids, embeds={AUDIO: embeds}, plain=int((ids == tokenizer.audio_pad).argmax()))


def greedy(tokens: int) -> SamplingParams:
    return SamplingParams(max_new_tokens=tokens, temperature=0.0)


def weights_of(model: AsrModel) -> list[torch.Tensor]:
    """Matrices that a token reads."""
    layers = [m for m in model.modules() if isinstance(m, DecoderLayer)]
    return [*(w for layer in layers for w in (layer.wqkv, layer.wo, layer.w13, layer.w2)), model.head]


def products(weights: list[torch.Tensor], rows: int) -> Probe:
    """Matrix products alone, of ``rows`` rows each."""
    inputs = {w.shape[1]: torch.randn(rows, w.shape[1]) for w in weights}

    def run() -> None:
        with torch.inference_mode():
            for w in weights:
                linear(inputs[w.shape[1]], w)

    return run


def convolutions(encoder: AudioEncoder, chunks: int) -> Probe:
    """The convolutions of so many seconds, and the products of the layers behind them."""
    x = torch.randn(chunks, 1, encoder.config.num_mel_bins, 100)
    matrices = [w for layer in encoder.blocks for w in (layer.wqkv, layer.wo, layer.w1, layer.w2)]
    after = products([encoder.conv_out, *matrices, encoder.proj1, encoder.proj2], chunks * CHUNK_TOKENS)

    def run() -> None:
        with torch.inference_mode():
            y = x
            for kernel, bias in zip(encoder.kernels, encoder.kernel_biases, strict=True):
                y = F.conv2d(y, kernel, bias, stride=2, padding=1)
        after()

    return run


def build(layers: int | None, hidden: int | None) -> tuple[AsrConfig, AsrTokenizer]:
    size = SIZES["small"]
    if layers is not None:
        size = replace(size, layers=layers)
    if hidden is not None:
        size = replace(size, hidden=hidden, intermediate=3 * hidden, heads=hidden // 64, kv_heads=hidden // 128)
    return size.build()


def measure(arguments: argparse.Namespace) -> dict[str, float]:
    config, tokenizer = build(arguments.layers, arguments.hidden)
    where: dict[str, Any] = {"device": torch.device("cpu"), "dtype": torch.float32}
    model, encoder = endless(random_asr(config, 0, **where)), random_encoder(config.audio, 0, **where)
    weights = weights_of(model)
    size = 4 * sum(w.numel() for w in weights)
    count = sum(p.numel() for part in (model, encoder) for p in part.parameters())
    print(f"{count / 1e6:.1f} M parameters, {size / 1e6:.0f} MB read per token, {arguments.threads} threads")
    engine = TorchEngine(model, parse_options({"max_running": 16, "kv_tokens": 16_384, "prefill_chunk": 2048}))
    engine.start()
    steps, timer = arguments.steps, Timer(arguments.threads)
    f: dict[str, float] = {}

    group = Lockstep(engine, 1)
    group.submit([prompt(tokenizer, model, SECONDS, 1)], greedy(steps + 2))
    group.step()
    f |= timer.in_turns({"batch1": group.step, "floor": memory(size), "products1": products(weights, 1)}, steps)
    group.end()
    for batch in (8, 16):
        group = Lockstep(engine, batch)
        group.submit([prompt(tokenizer, model, SECONDS, 100 * batch + i) for i in range(batch)], greedy(steps // 2 + 2))
        group.step()
        probes = {f"batch{batch}": group.step, f"products{batch}": products(weights, batch)}
        f |= timer.in_turns(probes, steps // 2)
        group.end()

    length = len(prompt(tokenizer, model, SECONDS, 0).tokens)
    numbers = iter(range(10_000, 20_000))

    def first(seed: int | None = None) -> float:
        group = Lockstep(engine, 1)
        group.submit([prompt(tokenizer, model, SECONDS, next(numbers) if seed is None else seed)], greedy(1))
        group.step()
        return group.sinks[0].cached / length

    probes = {"prompt": first, "prompt_products": products(weights[:-1], length)}
    f |= timer.in_turns(probes, max(2, steps // 6))
    first(77)
    f["again_skipped"] = first(77)
    engine.close()

    wave = sound(SECONDS, 0)
    mel = log_mel(wave)
    f |= timer.in_turns(
        {
            "encoder": lambda: encoder.encode([mel]),
            "encoder_floor": convolutions(encoder, int(SECONDS)),
            "features": lambda: log_mel(wave),
        },
        max(2, steps // 3),
    )
    return f


def report(f: dict[str, float]) -> list[Line]:
    """What was measured, beside the goals."""
    ms = {name: value * 1e3 for name, value in f.items()}
    ratio = f["batch1"] / f["floor"]
    lines = [
        (
            f"batch 1: {ms['batch1']:.1f} ms/token, memory floor {ms['floor']:.1f}, products {ms['products1']:.1f}",
            f"{ratio:.2f}x, goal 1.5x",
            ratio <= 1.5,
        )
    ]
    for batch in (8, 16):
        ratio = f[f"batch{batch}"] / f[f"products{batch}"]
        what = f"batch {batch}: {ms[f'batch{batch}']:.1f} ms/step, its products alone {ms[f'products{batch}']:.1f}"
        lines.append((what, f"{ratio:.2f}x, goal 1.3x", ratio <= 1.3))
    for name, floor, what in (
        ("prompt", "prompt_products", f"prompt of {SECONDS:g} s and first token"),
        ("encoder", "encoder_floor", f"encoder, {SECONDS:g} s"),
    ):
        ratio = f[name] / f[floor]
        what = f"{what}: {ms[name]:.0f} ms, its products alone {ms[floor]:.0f}"
        lines.append((what, f"{ratio:.2f}x, goal 1.5x", ratio <= 1.5))
    lines += [
        ("the same clip again", f"{f['again_skipped']:.0%} of its prompt skipped", f["again_skipped"] > 0.75),
        ("features", f"{SECONDS / f['features']:.0f} s of sound per second", True),
    ]
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--layers", type=int, help="of the language model; 12 make about 200 M parameters")
    parser.add_argument("--hidden", type=int, help="width of the language model")
    parser.add_argument("--json", help="write the figures (seconds, shares) to this file")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    figures = measure(arguments)
    show_lines(report(figures))
    write(figures, arguments.json)


if __name__ == "__main__":
    main()
