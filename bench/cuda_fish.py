"""Fish S2-Pro with its real dimensions and random weights on one GPU: first audio, RTF, throughput, floors.

    python bench/cuda_fish.py [--limit 330] [--json FILE]
    python bench/cuda_fish.py --engine sglang              (where the extra sglang is installed)
    python bench/cuda_fish.py --device cpu --tiny          (a check of the script itself)

Goals on one H200, of the whole recipe: first audio under 30 ms, RTF under 0.12 at batch 1, 64 streams in real time.
``batch*`` are steps of the engine alone. Parts that no longer fit in ``--limit`` seconds are named as not measured.
Floors: bytes of weights and KV cache that a frame reads, over the
read bandwidth measured here; they ignore launches and small kernels.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

import engines
import fish_ar
import recipe
from fish_s2pro.codec.config import CodecConfig
from fish_s2pro.codec.loading import random_decoder
from fish_s2pro.config import FishConfig, parse_config
from fish_s2pro.loader import random_ar
from fish_s2pro.model import DualAR
from fish_s2pro.source import DualARSource
from measuring import Figures, Lockstep, Stream, cuda_arguments, read_rate, run_parts, show_figures, sync, write
from omni.codecs import StreamingDecoder
from omni.engines.base import Engine, Prompt, SamplingParams
from omni.engines.sglang import create_engine as sglang_engine
from omni.engines.torch import TorchEngine, parse_options


def real_config() -> FishConfig:
    shared = {"dim": 2560, "n_head": 32, "n_local_heads": 8, "head_dim": 128, "intermediate_size": 9728}
    text = {"vocab_size": 155_776, "n_layer": 36, "rope_base": 1e6, "norm_eps": 1e-6, "max_seq_len": 32_768}
    return parse_config(
        {
            "model_type": "fish_qwen3_omni",
            "text_config": {**shared, **text, "attention_qk_norm": True},
            "audio_decoder_config": {
                **shared,
                "vocab_size": 4096,
                "num_codebooks": 10,
                "n_layer": 4,
                "attention_qk_norm": False,
            },
            "eos_token_id": 151_645,
            "semantic_start_token_id": 151_678,
            "semantic_end_token_id": 155_773,
        }
    )


class Bench:
    def __init__(self, arguments: argparse.Namespace) -> None:
        self.tiny = arguments.tiny
        self.device = torch.device(arguments.device)
        self.cuda = self.device.type == "cuda"
        dtype = torch.bfloat16 if self.cuda else torch.float32
        self.source: DualARSource | None = None
        self.model: DualAR
        if arguments.engine == "sglang":
            name = str(dtype).removeprefix("torch.")
            self.source = DualARSource(device=arguments.device, dtype=name, random="tiny" if self.tiny else "full")
            # SGLang builds the model in its own process; here are only its sizes.
            self.model = DualAR(self.source.open()[0], device=torch.device("meta"), dtype=dtype)
        else:
            config = fish_ar.config(2, 1, 256) if self.tiny else real_config()
            self.model = random_ar(config, 0, device=self.device, dtype=dtype)
            self.model.head[len(self.model.legal) - 1] = 0  # see fish_ar: nobody ends early
        codec = CodecConfig().scaled(0.0625) if self.tiny else CodecConfig()
        self.decoder = random_decoder(codec, device=self.device)
        self.frame_seconds = codec.frame_samples / codec.sample_rate
        # A client of SGLang cannot hold the early ones back until the last one has begun.
        self.frames = (6 if self.source is None else 60) if self.tiny else 150
        self.figures: Figures = {}
        self._seed = 0

    def engine(self, *, graph: bool) -> Engine:
        tokens = 64 * (256 if self.tiny else 1024)
        made: Engine
        if self.source is not None:
            # Graphs with as few candidates as the torch engine has them for these requests.
            own = {"max_running_requests": 64, "max_total_tokens": tokens, "max_candidates": 64}
            made = sglang_engine(self.source, own if graph else {**own, "disable_cuda_graph": True})
        else:
            made = TorchEngine(self.model, parse_options({"max_running": 64, "cuda_graph": graph, "kv_tokens": tokens}))
        made.start()
        return made

    def prompt(self, length: int) -> Prompt:
        self._seed += 1
        if self.source is not None:
            return engines.prompts_of(self.source, 1, length, self._seed)[0]
        return fish_ar.prompt(self.model, length, self._seed)

    def params(self, frames: int) -> SamplingParams:
        return SamplingParams(max_new_tokens=frames, temperature=0.8, top_p=0.8, top_k=30, seed=self._seed)

    # Parts --------------------------------------------------------------------------------------------------

    def bandwidth(self) -> None:
        """Read bandwidth, and from it the floors of a frame."""
        rate = read_rate(self.device)
        self.figures["read_gb_per_s"] = rate / 1e9
        once, per_pass = fish_ar.frame_weights(self.model)
        passes = self.model.codebooks - 1
        size = self.model.dtype.itemsize
        weights = size * (sum(w.numel() for w in once) + passes * sum(w.numel() for w in per_pass))
        kv = self.model.kv
        per_token = 2 * kv.layers * kv.kv_heads * kv.head_dim * size
        for batch in (1, 8, 64):
            context = batch * (100 + self.frames / 2)
            self.figures[f"floor_ms_{batch}"] = 1e3 * (weights + per_token * context) / rate

    def throughput(self, engine: Engine, batch: int, frames: int, name: str) -> None:
        """Steps of ``batch`` requests that all have had their first frame."""
        prompts, params = [self.prompt(100) for _ in range(batch)], self.params(frames + 2)
        if isinstance(engine, TorchEngine):
            group = Lockstep(engine, batch)
            group.submit(prompts, params)
            group.step()
            start = time.perf_counter()
            group.step(frames)
            seconds = (time.perf_counter() - start) / frames
            group.end()
        else:
            # It does not pause for a client that does not read.
            _, seconds, _ = engines.steady(engine, prompts, params)
        self.figures[f"{name}_ms_per_step"] = 1e3 * seconds
        self.figures[f"{name}_frames_per_s"] = batch / seconds
        self.figures[f"{name}_rtf"] = seconds / self.frame_seconds

    def warm_throughput(self, engine: Engine, batch: int, frames: int, name: str) -> None:
        """Twice: the first time captures the graphs of every size of context that is met."""
        for _ in range(2):
            self.throughput(engine, batch, frames, name)

    def first_audio(self, engine: Engine, length: int, name: str, *, again: bool = False) -> None:
        """From submit to the samples of the first frame on the host."""
        codec = StreamingDecoder(self.decoder, streams=1, max_frames=1)
        known = self.prompt(length)
        found = []
        for attempt in range(2 if self.tiny else 12):
            ready: list[float] = []
            stream_id = codec.open()

            def speak(codes: Any, stream_id: int = stream_id, ready: list[float] = ready) -> None:
                codec.step([(stream_id, torch.from_numpy(codes).unsqueeze(1))])
                ready.append(time.perf_counter())

            stream = Stream(speak)
            item = known if again else self.prompt(length)
            start = time.perf_counter()
            engine.submit("first", item, self.params(1), stream)
            stream.wait()
            codec.close(stream_id)
            if attempt:  # the first one captures graphs and loads kernels
                found.append(1e3 * (ready[0] - start))
        self.figures[f"{name}_ms"] = statistics.median(found)

    def codec_time(self, streams: int, frames: int) -> None:
        codec = StreamingDecoder(self.decoder, streams=streams, max_frames=frames, max_batch=streams)
        ids = [codec.open() for _ in range(streams)]
        generator = torch.Generator().manual_seed(0)
        found = []
        for _ in range(2 if self.tiny else 8):
            codes = torch.randint(0, 1024 if not self.tiny else 64, (self.model.codebooks, frames), generator=generator)
            start = time.perf_counter()
            codec.step([(i, codes) for i in ids])
            found.append(1e3 * (time.perf_counter() - start))
        self.figures[f"codec_{streams}x{frames}_ms"] = min(found)

    def recipe(self, engine: str, loads: tuple[int, ...]) -> None:
        """All of it: text in, samples out."""
        size, width = ("tiny", 0.0625) if self.tiny else ("full", 1.0)
        options = {
            "torch": ("max_running=64", f"kv_tokens={64 * 1024}"),
            "sglang": ("max_running_requests=64", f"max_total_tokens={64 * 1024}", "max_candidates=64"),
        }[engine]
        sets = [
            *(f"{stage}.device={self.device}" for stage in ("reference", "ar", "vocoder")),
            *(f"{stage}.random_width={width}" for stage in ("reference", "vocoder")),
            *(f"ar.{engine}.{option}" for option in options),
            *(f"ar.engine={engine}", f"ar.random={size}", "vocoder.max_batch=64"),
        ]
        self.figures |= recipe.speak("fish-s2-pro-random", sets, loads, self.frames)


def run(arguments: argparse.Namespace) -> tuple[Figures, list[str]]:
    begin = time.perf_counter()
    bench = Bench(arguments)
    sync(bench.device)
    bench.figures["build_s"] = time.perf_counter() - begin
    main = bench.engine(graph=True)
    frames = bench.frames
    short = bench.frames if bench.tiny else 40
    parts: list[tuple[str, Callable[[], None]]] = [
        ("bandwidth", bench.bandwidth),
        ("recipe", lambda: bench.recipe(arguments.engine, (1, 4) if bench.tiny else (1, 64))),
        ("batch 1", lambda: bench.warm_throughput(main, 1, frames, "batch1")),
        ("first audio, 60", lambda: bench.first_audio(main, 60, "first_60")),
        ("first audio, 400", lambda: bench.first_audio(main, 100 if bench.tiny else 400, "first_400")),
        (
            "first audio, 400 known",
            lambda: bench.first_audio(main, 100 if bench.tiny else 400, "first_400_known", again=True),
        ),
        ("batch 64", lambda: bench.warm_throughput(main, 64, frames, "batch64")),
        ("batch 8", lambda: bench.warm_throughput(main, 8, frames, "batch8")),
        *((f"codec {n} x {f}", lambda n=n, f=f: bench.codec_time(n, f)) for n in (1, 8, 64) for f in (1, 4)),
    ]
    missed = run_parts(parts, begin, arguments.limit)
    main.close()
    eager = bench.engine(graph=False)
    parts = [
        (f"batch {n} without graphs", lambda n=n: bench.throughput(eager, n, short, f"eager{n}")) for n in (1, 8, 64)
    ]
    missed += run_parts(parts, begin, arguments.limit)
    eager.close()
    bench.figures["total_s"] = time.perf_counter() - begin
    if bench.cuda:
        bench.figures["memory_gb"] = torch.cuda.max_memory_allocated() / 1e9
    return bench.figures, missed


def main() -> None:
    parser = cuda_arguments(__doc__)
    parser.add_argument("--engine", choices=("torch", "sglang"), default="torch")
    arguments = parser.parse_args()
    figures, missed = run(arguments)
    goals = {"recipe_1_first_ms": 30.0, "first_400_ms": 30.0, "recipe_1_rtf": 0.12, "recipe_64_rtf": 1.0}
    show_figures(figures, {} if arguments.tiny else goals, missed)
    write(figures, arguments.json)


if __name__ == "__main__":
    main()
