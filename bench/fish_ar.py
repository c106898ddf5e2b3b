"""Decode cost of a random Fish S2-Pro of about 230 M parameters on CPU, beside floors measured in the same run.

    python bench/fish_ar.py [--threads 1] [--frames 30] [--json FILE]

* batch 1 against the memory floor: bytes of weights that a frame reads, over the read bandwidth of this machine now;
* batch 8 and 16 against their matrix products alone, with the same kernels (and with torch's own, for comparison);
* a repeated reference prompt of 400 positions: how much of the prefill is skipped, time to the first frame;
* the cost of a step against the capacity of the cache and against the live context.

Steps and floors take turns and each figure is the best of its kind, since other work may share the machine. With one
thread the clock is the process's CPU time, which stands still while other work has the core; the wall time is printed.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fish_s2pro.config import FishConfig, parse_config
from fish_s2pro.loader import random_ar
from fish_s2pro.model import DualAR
from measuring import Line, Lockstep, Probe, Timer, memory, show_lines, write
from omni.engines.base import Prompt, SamplingParams
from omni.engines.torch import DecoderLayer, TorchEngine, linear, parse_options

Product = Callable[[Tensor, Tensor], Tensor]


def config(layers: int = 12, fast_layers: int = 4, dim: int = 1024) -> FishConfig:
    shared = {
        "dim": dim,
        "n_head": dim // 64,
        "n_local_heads": max(1, dim // 256),
        "head_dim": 64,
        "intermediate_size": dim * 5 // 2,
    }
    text = {
        **shared,
        "vocab_size": 12_288,
        "n_layer": layers,
        "rope_base": 1e6,
        "norm_eps": 1e-6,
        "max_seq_len": 32_768,
        "attention_qk_norm": True,
    }
    return parse_config(
        {
            "model_type": "fish_qwen3_omni",
            "text_config": text,
            "audio_decoder_config": {
                **shared,
                "vocab_size": 4096,
                "num_codebooks": 10,
                "n_layer": fast_layers,
                "attention_qk_norm": False,
            },
            "eos_token_id": 8191,
            "semantic_start_token_id": 8192,
            "semantic_end_token_id": 12_287,
        }
    )


def prompt(model: DualAR, length: int, seed: int) -> Prompt:
    """Text, a reference of frames, text: random, ``length`` positions."""
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, model.config.codebook_size, (model.codebooks, length))
    tokens = codes[0] + model.config.semantic_begin
    tokens[:20] = rng.integers(0, 8000, 20)
    tokens[-20:] = rng.integers(0, 8000, 20)
    return Prompt(tokens=tokens, codes=codes)


def together(engine: TorchEngine, model: DualAR, batch: int, context: int, seed: int, frames: int) -> Lockstep:
    """``batch`` requests that have had their prefill and first frame, and take ``frames`` more."""
    group = Lockstep(engine, batch)
    params = SamplingParams(max_new_tokens=frames + 2, temperature=0.8, top_p=0.8, top_k=30, seed=seed)
    group.submit([prompt(model, context, 1000 * seed + i) for i in range(batch)], params)
    group.step()
    return group


def frame_weights(model: DualAR) -> tuple[list[Tensor], list[Tensor]]:
    """Matrices read once per frame, and those read once per pass of the fast AR."""
    fast = list(model.depth.layers)
    slow = [m for m in model.modules() if isinstance(m, DecoderLayer) and m not in fast]
    once, per_pass = (
        [w for layer in layers for w in (layer.wqkv, layer.wo, layer.w13, layer.w2)] for layers in (slow, fast)
    )
    return [*once, model.head], [*per_pass, model.fast_head]


def products(model: DualAR, batch: int, *, packed: bool = True) -> Probe:
    """One frame's matrix products alone; not ``packed``: as torch makes them of plain weights."""
    once, per_pass = frame_weights(model)
    product: Product = linear
    if not packed:
        once, per_pass = ([w.to_dense() if w.is_mkldnn else w for w in ws] for ws in (once, per_pass))
        product = F.linear
    head = per_pass[-1]
    passes = model.codebooks - 1
    inputs = {
        (rows, w.shape[1]): torch.randn(rows, w.shape[1]) for w in (*once, *per_pass) for rows in (batch, 2 * batch)
    }

    def frame() -> None:
        with torch.inference_mode():
            for w in once:
                product(inputs[batch, w.shape[1]], w)
            for index in range(passes):
                for w in per_pass:
                    rows = 2 * batch if index == 0 and w is not head else batch
                    product(inputs[rows, w.shape[1]], w)

    return frame


def measure(arguments: argparse.Namespace) -> dict[str, float]:
    model = random_ar(
        config(arguments.layers, arguments.fast_layers, arguments.dim),
        0,
        device=torch.device("cpu"),
        dtype=torch.float32,
    )
    # The end token's logit is 0, far below the best: every request runs as long as it is measured.
    model.head[len(model.legal) - 1] = 0
    once, per_pass = frame_weights(model)
    read = 4 * (sum(w.numel() for w in once) + (model.codebooks - 1) * sum(w.numel() for w in per_pass))
    parameters = sum(p.numel() for p in model.parameters())
    print(f"{parameters / 1e6:.1f} M parameters, {read / 1e6:.0f} MB read per frame, {arguments.threads} threads")

    def engine(**options: Any) -> TorchEngine:
        made = TorchEngine(model, parse_options({"max_running": 16, **options}))
        made.start()
        return made

    main, frames, timer = engine(kv_tokens=32_768), arguments.frames, Timer(arguments.threads)
    f: dict[str, float] = {}
    group = together(main, model, 1, 100, 1, frames)
    probes = {"batch1": group.step, "floor": memory(read), "products1": products(model, 1)}
    f |= timer.in_turns(probes, frames)
    group.end()
    for batch in (8, 16):
        group = together(main, model, batch, 100, batch, frames // 2)
        probes = {
            f"batch{batch}": group.step,
            f"products{batch}": products(model, batch),
            f"torch{batch}": products(model, batch, packed=False),
        }
        f |= timer.in_turns(probes, frames // 2)
        group.end()

    small = engine(kv_tokens=1024)
    groups = {
        "capacity1024": together(small, model, 1, 100, 2, frames),
        "capacity32768": together(main, model, 1, 100, 3, frames),
        "context900": together(main, model, 1, 900, 4, frames),
    }
    f |= timer.in_turns({name: group.step for name, group in groups.items()}, frames)
    for group in groups.values():
        group.end()
    small.close()

    for name in ("cold", "warm"):
        group = Lockstep(main, 1)

        def first(group: Lockstep = group) -> None:
            params = SamplingParams(max_new_tokens=1, temperature=0.8, top_p=0.8, top_k=30, seed=1)
            group.submit([prompt(model, 400, 77)], params)
            group.step()

        f[f"first_{name}"] = timer(f"first_{name}", first)
        f[f"skipped_{name}"] = group.sinks[0].cached / 400
    main.close()
    f |= {f"wall_{name}": value for name, value in timer.wall.items()}
    return f


def report(f: dict[str, float]) -> list[Line]:
    """What was measured, beside the goals."""
    ms = {name: value * 1e3 for name, value in f.items()}
    lines = [
        (
            f"batch 1: {ms['batch1']:.1f} ms/frame (wall {ms['wall_batch1']:.1f}), memory floor {ms['floor']:.1f}, "
            f"products alone {ms['products1']:.1f}",
            f"{f['batch1'] / f['floor']:.2f}x, goal 1.5x",
            f["batch1"] <= 1.5 * f["floor"],
        )
    ]
    for batch in (8, 16):
        step, alone, vendor = f[f"batch{batch}"], f[f"products{batch}"], f[f"torch{batch}"]
        lines.append(
            (
                f"batch {batch}: {step * 1e3:.1f} ms/step, its products alone {alone * 1e3:.1f}",
                f"{step / alone:.2f}x, goal 1.3x (products by torch's own kernel: {vendor * 1e3:.1f} ms)",
                step <= 1.3 * alone,
            )
        )
    lines += [
        (
            f"capacity 1,024 / 32,768: {ms['capacity1024']:.1f} / {ms['capacity32768']:.1f} ms/frame",
            f"{f['capacity32768'] / f['capacity1024']:.2f}x, goal at most 1.1x",
            f["capacity32768"] <= 1.1 * f["capacity1024"],
        ),
        (
            f"context 100 / 900: {ms['capacity32768']:.1f} / {ms['context900']:.1f} ms/frame",
            f"{f['context900'] / f['capacity32768']:.2f}x",
            True,
        ),
        (
            f"400 positions again: first frame {ms['first_warm']:.0f} ms instead of {ms['first_cold']:.0f}",
            f"{f['skipped_warm']:.1%} of the prompt skipped, goal 95 %",
            f["skipped_warm"] >= 0.95 and f["skipped_cold"] == 0,
        ),
    ]
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--frames", type=int, default=30)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--fast-layers", type=int, default=4)
    parser.add_argument("--dim", type=int, default=1024)
    parser.add_argument("--json", help="write the figures (seconds, shares) to this file")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    figures = measure(arguments)
    show_lines(report(figures))
    write(figures, arguments.json)


if __name__ == "__main__":
    main()
