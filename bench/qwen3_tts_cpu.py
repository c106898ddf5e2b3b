"""Cost of a random Qwen3-TTS of about 200 M parameters on CPU, beside floors measured in the same run.

    python bench/qwen3_tts_cpu.py [--threads 1] [--frames 20] [--json FILE]

* talker and code predictor at batch 1 against the memory floor: bytes of weights that a frame reads, over the read
  bandwidth of this machine now;
* batch 8 and 16 against their matrix products alone, with the same kernels;
* a prompt with a cloned voice of 400 positions, and the same prompt again;
* the codec at half its published width: frame by frame and by eight, against the whole decode.

Steps and floors take turns and each figure is the best of its kind, since other work may share the machine. With one
thread the clock is the process's CPU time, which stands still while other work has the core; the wall time is printed.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
from torch import Tensor

from measuring import Figures, Line, Lockstep, Probe, Timer, memory, show_lines, write
from omni.codecs import StreamingDecoder, decode_whole
from omni.engines.base import Prompt, SamplingParams
from omni.engines.torch import DecoderLayer, TorchEngine, linear, parse_options
from qwen3_tts.codec.config import published
from qwen3_tts.codec.loading import random_decoder
from qwen3_tts.loader import random_talker
from qwen3_tts.model import SPEAKER, Talker
from qwen3_tts.sizes import size_config


def prompt(model: Talker, length: int, seed: int) -> Prompt:
    """A cloned voice: text, a speaker vector, frames of a reference; random, ``length`` positions."""
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, model.config.codebook_size, (model.codebooks, length))
    codes[1:, :20] = 0
    codes[0, :20] = model.no_code
    codes[0, 10] = model.speaker_code
    tokens = np.full(length, model.config.tts_pad_id)
    tokens[:20] = rng.integers(0, 256, 20)
    vector = rng.standard_normal(model.width).astype(np.float32)
    return Prompt(tokens=tokens, codes=codes, embeds={SPEAKER: vector})


def params(frames: int, seed: int) -> SamplingParams:
    own = {"tail": [65] * 20, "temperature": 0.9, "top_k": 50, "subtalker_temperature": 0.9, "subtalker_top_k": 50}
    return SamplingParams(
        max_new_tokens=frames, temperature=0.9, top_k=50, repetition_penalty=1.05, seed=seed, extra=own
    )


def frame_weights(model: Talker) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """Matrices read once per frame, those read once per pass of the predictor, and one head per pass."""
    fast = list(model.depth.layers)
    slow = [m for m in model.modules() if isinstance(m, DecoderLayer) and m not in fast]
    once, per_pass = (
        [w for layer in layers for w in (layer.wqkv, layer.wo, layer.w13, layer.w2)] for layers in (slow, fast)
    )
    project = [] if model.project is None else [model.project]
    return [*once, model.head, *project], per_pass, list(model.depth_heads)


def frame_bytes(model: Talker) -> int:
    """Bytes of weights that a frame reads."""
    once, per_pass, heads = frame_weights(model)
    passes = model.codebooks - 1
    values = sum(w.numel() for w in (*once, *heads)) + passes * sum(w.numel() for w in per_pass)
    return model.dtype.itemsize * values


def products(model: Talker, batch: int) -> Probe:
    """One frame's matrix products alone."""
    once, per_pass, heads = frame_weights(model)
    widths = {w.shape[1] for w in (*once, *per_pass, *heads)}
    inputs = {(rows, width): torch.randn(rows, width) for width in widths for rows in (batch, 2 * batch)}

    def frame() -> None:
        with torch.inference_mode():
            for w in once:
                linear(inputs[batch, w.shape[1]], w)
            for index, head in enumerate(heads):
                # The first two positions are known together.
                rows = batch if index else 2 * batch
                for w in per_pass:
                    linear(inputs[rows, w.shape[1]], w)
                linear(inputs[batch, head.shape[1]], head)

    return frame


def together(engine: TorchEngine, model: Talker, batch: int, context: int, seed: int, frames: int) -> Lockstep:
    """``batch`` requests that have had their prefill and first frame, and take ``frames`` more."""
    group = Lockstep(engine, batch)
    group.submit([prompt(model, context, 1000 * seed + i) for i in range(batch)], params(frames + 2, seed))
    group.step()
    return group


def measure_talker(arguments: argparse.Namespace, timer: Timer) -> Figures:
    model = random_talker(size_config(arguments.size), 0, device=torch.device("cpu"), dtype=torch.float32)
    read = frame_bytes(model)
    parameters = sum(p.numel() for p in model.parameters())
    print(f"{parameters / 1e6:.1f} M parameters, {read / 1e6:.0f} MB read per frame, {arguments.threads} threads")
    engine = TorchEngine(model, parse_options({"max_running": 16, "kv_tokens": 16_384}))
    engine.start()
    frames = arguments.frames
    f: Figures = {}
    for batch in (1, 8, 16):
        turns = frames if batch == 1 else max(2, frames // 2)
        group = together(engine, model, batch, 60, batch, turns)
        probes: dict[str, Probe] = {f"batch{batch}": group.step, f"products{batch}": products(model, batch)}
        if batch == 1:
            probes["floor"] = memory(read)
        f |= timer.in_turns(probes, turns)
        group.end()
    for name in ("cold", "warm"):
        group = Lockstep(engine, 1)

        def first(group: Lockstep = group) -> None:
            group.submit([prompt(model, 400, 77)], params(1, 1))
            group.step()

        f[f"first_{name}"] = timer(f"first_{name}", first)
        f[f"skipped_{name}"] = group.sinks[0].cached / 400
    engine.close()
    return f


def measure_codec(arguments: argparse.Namespace, timer: Timer) -> Figures:
    """Seconds per frame."""
    decoder = random_decoder(published(arguments.width), 0, torch.device("cpu"))
    codes = torch.randint(0, 2048, (16, 16), generator=torch.Generator().manual_seed(0))

    def by(chunk: int) -> Probe:
        streams = StreamingDecoder(decoder, streams=1)
        place = streams.open()

        def run() -> None:
            for start in range(0, 16, chunk):
                streams.step([(place, codes[:, start : start + chunk])])

        return run

    probes: dict[str, Probe] = {
        "codec_whole": lambda: decode_whole(decoder, codes[None]),
        "codec_by_1": by(1),
        "codec_by_8": by(8),
    }
    return {name: seconds / 16 for name, seconds in timer.in_turns(probes, 4).items()}


def report(f: Figures) -> list[Line]:
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
        step, alone = f[f"batch{batch}"], f[f"products{batch}"]
        lines.append(
            (
                f"batch {batch}: {step * 1e3:.1f} ms/step, its products alone {alone * 1e3:.1f}",
                f"{step / alone:.2f}x, goal 1.3x",
                step <= 1.3 * alone,
            )
        )
    lines += [
        (
            f"400 positions again: first frame {ms['first_warm']:.0f} ms instead of {ms['first_cold']:.0f}",
            f"{f['skipped_warm']:.1%} of the prompt skipped, goal 95 %",
            f["skipped_warm"] >= 0.95 and f["skipped_cold"] == 0,
        ),
        (
            f"codec, whole {ms['codec_whole']:.1f} ms/frame, by eight {ms['codec_by_8']:.1f}, by one "
            f"{ms['codec_by_1']:.1f}",
            f"{f['codec_by_8'] / f['codec_whole']:.2f}x by eight, goal 1.2x",
            f["codec_by_8"] <= 1.2 * f["codec_whole"],
        ),
    ]
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--frames", type=int, default=20)
    parser.add_argument("--size", choices=["tiny", "small", "0.6b"], default="small")
    parser.add_argument("--width", type=float, default=0.5, help="fraction of the codec's published widths")
    parser.add_argument("--json", help="write the figures (seconds, shares) to this file")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    timer = Timer(arguments.threads)
    figures = measure_talker(arguments, timer) | measure_codec(arguments, timer)
    figures |= {f"wall_{name}": value for name, value in timer.wall.items()}
    show_lines(report(figures))
    write(figures, arguments.json)


if __name__ == "__main__":
    main()
