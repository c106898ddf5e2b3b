"""Qwen3-TTS with its real dimensions and random weights on one GPU: first audio, RTF, throughput, floors.

    python bench/cuda_qwen3_tts.py [--size 1.7b] [--limit 240] [--json FILE]
    python bench/cuda_qwen3_tts.py --device cpu --tiny          (a check of the script itself)

Goals on one H200 for the 1.7B, of the whole recipe: first audio under 25 ms at batch 1, under 60 ms with 16 streams
that begin together. ``first_*`` and ``batch*`` are of the engine and the codec alone. Parts that no longer fit in
``--limit`` seconds are named as not measured. Floors: bytes of weights and KV cache that a frame reads, over the read
bandwidth measured here; they ignore launches and small kernels.
"""

from __future__ import annotations

import argparse
import json
import statistics
import threading
import time
from collections.abc import Callable
from typing import Any

import torch

import recipe
from measuring import Figures, Lockstep, cuda_arguments, read_rate, run_parts, show_figures, sync, write
from omni.codecs import StreamingDecoder
from omni.engines.base import Prompt, StepOutput
from omni.engines.torch import TorchEngine, parse_options
from qwen3_tts.codec.config import published
from qwen3_tts.codec.loading import random_decoder
from qwen3_tts.loader import random_talker
from qwen3_tts.sizes import size_config
from qwen3_tts_cpu import frame_bytes, params, prompt

FRAME_SECONDS = 0.08


class Stream:
    """A request whose first frame goes through the codec in a thread of its own, as in the pipeline."""

    def __init__(self, frames: list[tuple[Stream, Any]], arrived: threading.Condition) -> None:
        self._frames, self._arrived = frames, arrived
        self.error: Exception | None = None

    def room(self) -> int:
        return 1

    def push(self, output: StepOutput) -> None:
        with self._arrived:
            self._frames.append((self, output.codes))
            self._arrived.notify()

    def finish(self) -> None:
        pass

    def fail(self, error: Exception) -> None:
        self.error = error
        with self._arrived:
            self._frames.append((self, None))
            self._arrived.notify()

    def on_room(self, wake: Any) -> None:
        pass


class Bench:
    def __init__(self, arguments: argparse.Namespace) -> None:
        self.tiny = arguments.tiny
        self.device = torch.device(arguments.device)
        self.cuda = self.device.type == "cuda"
        dtype = torch.bfloat16 if self.cuda else torch.float32
        self.model = random_talker(
            size_config("tiny" if self.tiny else arguments.size), 0, device=self.device, dtype=dtype
        )
        self.decoder = random_decoder(published(1 / 32 if self.tiny else 1.0), 0, self.device)
        self.frames = 4 if self.tiny else 100
        self.figures: Figures = {}
        self._seed = 0

    def engine(self, *, graph: bool) -> TorchEngine:
        tokens = 64 * 128 if self.tiny else 64 * 1024
        made = TorchEngine(self.model, parse_options({"max_running": 64, "cuda_graph": graph, "kv_tokens": tokens}))
        made.start()
        return made

    def prompt(self, length: int) -> Prompt:
        self._seed += 1
        return prompt(self.model, length, self._seed)

    # Parts --------------------------------------------------------------------------------------------------

    def bandwidth(self) -> None:
        """Read bandwidth, and from it the floors of a frame."""
        rate = read_rate(self.device)
        self.figures["read_gb_per_s"] = rate / 1e9
        kv = self.model.kv
        per_token = 2 * kv.layers * kv.kv_heads * kv.head_dim * self.model.dtype.itemsize
        for batch in (1, 16, 64):
            context = batch * (100 + self.frames / 2)
            self.figures[f"floor_ms_{batch}"] = 1e3 * (frame_bytes(self.model) + per_token * context) / rate

    def throughput(self, engine: TorchEngine, batch: int, frames: int, name: str) -> None:
        """Steps of ``batch`` requests that all have had their first frame."""
        group = Lockstep(engine, batch)
        group.submit([self.prompt(100) for _ in range(batch)], params(frames + 2, self._seed))
        group.step()
        start = time.perf_counter()
        group.step(frames)
        seconds = (time.perf_counter() - start) / frames
        group.end()
        self.figures[f"{name}_ms_per_step"] = 1e3 * seconds
        self.figures[f"{name}_frames_per_s"] = batch / seconds
        self.figures[f"{name}_rtf"] = seconds / FRAME_SECONDS

    def warm_throughput(self, engine: TorchEngine, batch: int, name: str) -> None:
        """Twice: the first time captures the graphs of every size of context that is met."""
        for _ in range(2):
            self.throughput(engine, batch, self.frames, name)

    def first_audio(self, engine: TorchEngine, streams: int, length: int, name: str) -> None:
        """From the submit of ``streams`` requests to the samples of the last one's first frame on the host."""
        codec = StreamingDecoder(self.decoder, streams=streams, max_frames=1, max_batch=streams)
        found = []
        for attempt in range(2 if self.tiny else 10):
            frames: list[tuple[Stream, Any]] = []
            arrived = threading.Condition()
            requests = [(Stream(frames, arrived), self.prompt(length)) for _ in range(streams)]
            places = {id(stream): codec.open() for stream, _ in requests}
            start = time.perf_counter()
            for index, (stream, item) in enumerate(requests):
                engine.submit(f"first-{index}", item, params(1, self._seed), stream)
            heard = 0
            while heard < streams:
                with arrived:
                    while not frames:
                        arrived.wait()
                    batch, frames[:] = list(frames), []
                for stream, _ in batch:
                    if stream.error is not None:
                        raise stream.error
                jobs = [(places[id(stream)], torch.from_numpy(codes)[:, None]) for stream, codes in batch]
                codec.step(jobs)
                heard += len(batch)
            seconds = time.perf_counter() - start
            for place in places.values():
                codec.close(place)
            if attempt:  # the first one captures graphs and loads kernels
                found.append(1e3 * seconds)
        self.figures[f"{name}_ms"] = statistics.median(found)

    def codec_time(self, streams: int, frames: int) -> None:
        codec = StreamingDecoder(self.decoder, streams=streams, max_frames=frames, max_batch=streams)
        places = [codec.open() for _ in range(streams)]
        codes = torch.randint(0, 2048, (16, frames), generator=torch.Generator().manual_seed(0))
        found = []
        for _ in range(2 if self.tiny else 8):
            start = time.perf_counter()
            codec.step([(place, codes) for place in places])
            found.append(1e3 * (time.perf_counter() - start))
        self.figures[f"codec_{streams}x{frames}_ms"] = min(found)

    def known_voice(self) -> None:
        """A stream that begins after ten seconds of a reference: for the first time, and again."""
        frames = 8 if self.tiny else 125
        codec = StreamingDecoder(self.decoder, streams=1, max_frames=8, kept_bytes=1 << 30)
        place = codec.open()
        codes = torch.randint(0, 2048, (16, frames), generator=torch.Generator().manual_seed(1))
        codec.restart(place, torch.flip(codes, (1,)))
        for name in ("voice_new", "voice_known"):
            sync(self.device)
            start = time.perf_counter()
            codec.restart(place, codes)
            sync(self.device)
            self.figures[f"{name}_ms"] = 1e3 * (time.perf_counter() - start)

    def recipe(self, size: str, loads: tuple[int, ...]) -> None:
        """All of it: text in, samples out."""
        model = {
            "size": "tiny" if self.tiny else size,
            "kind": "custom_voice",
            "codec_width": 1 / 32 if self.tiny else 1.0,
        }
        sets = [
            *(f"{stage}.random={json.dumps(model)}" for stage in ("preprocess", "reference", "ar", "vocoder")),
            *(f"{stage}.device={self.device}" for stage in ("reference", "ar", "vocoder")),
            *("ar.engine=torch", "ar.torch.max_running=64", f"ar.torch.kv_tokens={64 * 1024}", "vocoder.max_batch=64"),
        ]
        self.figures |= recipe.speak("qwen3-tts-random", sets, loads, self.frames)


def run(arguments: argparse.Namespace) -> tuple[Figures, list[str]]:
    begin = time.perf_counter()
    bench = Bench(arguments)
    sync(bench.device)
    bench.figures["build_s"] = time.perf_counter() - begin
    main = bench.engine(graph=True)
    long = 60 if bench.tiny else 200
    parts: list[tuple[str, Callable[[], None]]] = [
        ("bandwidth", bench.bandwidth),
        ("recipe", lambda: bench.recipe(arguments.size, (1, 4) if bench.tiny else (1, 16, 64))),
        ("first audio", lambda: bench.first_audio(main, 1, 60, "first_1")),
        ("first audio of 16", lambda: bench.first_audio(main, 16, 60, "first_16")),
        ("first audio, cloned", lambda: bench.first_audio(main, 1, long, "first_1_cloned")),
        ("batch 1", lambda: bench.warm_throughput(main, 1, "batch1")),
        ("batch 16", lambda: bench.warm_throughput(main, 16, "batch16")),
        ("batch 64", lambda: bench.warm_throughput(main, 64, "batch64")),
        ("known voice", bench.known_voice),
        *((f"codec {n} x {f}", lambda n=n, f=f: bench.codec_time(n, f)) for n in (1, 16, 64) for f in (1, 4)),
    ]
    missed = run_parts(parts, begin, arguments.limit)
    main.close()
    eager = bench.engine(graph=False)
    frames = 4 if bench.tiny else 20
    parts = [("batch 1 without graphs", lambda: bench.throughput(eager, 1, frames, "eager1"))]
    missed += run_parts(parts, begin, arguments.limit)
    eager.close()
    bench.figures["total_s"] = time.perf_counter() - begin
    if bench.cuda:
        bench.figures["memory_gb"] = torch.cuda.max_memory_allocated() / 1e9
    return bench.figures, missed


def main() -> None:
    arguments = cuda_arguments(__doc__, ("1.7b", "0.6b"), limit=240).parse_args()
    figures, missed = run(arguments)
    goals = {"recipe_1_first_ms": 25.0, "recipe_16_first_worst_ms": 60.0, "recipe_1_rtf": 0.12, "recipe_64_rtf": 1.0}
    show_figures(figures, {} if arguments.tiny else goals, missed)
    write(figures, arguments.json)


if __name__ == "__main__":
    main()
