"""Qwen3-ASR with its real dimensions and random weights on one GPU: clips per second, first token, steps, floors.

    python bench/cuda_qwen3_asr.py [--size 0.6b] [--limit 330] [--json FILE]
    python bench/cuda_qwen3_asr.py --device cpu --tiny          (a check of the script itself)

Goal on one H200 with 0.6b: over 300 clips of 5 s per second through the whole recipe, from wav files to text, 20 tokens
each. Parts that no longer fit in ``--limit`` seconds are named as not measured. Floors: bytes of weights and KV cache
that a token reads, over the read bandwidth measured here; they ignore launches and small kernels.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch

import qwen3_asr_cpu as shared
from measuring import (
    Figures,
    Lockstep,
    Stream,
    cuda_arguments,
    read_rate,
    run_parts,
    show_figures,
    show_lines,
    sync,
    write,
)
from omni import TranscriptionRequest
from omni.config import configure
from omni.engines.base import Prompt, SamplingParams
from omni.engines.torch import TorchEngine, parse_options
from omni.pipeline import Pipeline
from omni.plugins import Plugins
from omni.testing import wav
from qwen3_asr.encoder import AudioEncoder
from qwen3_asr.features import SAMPLE_RATE, log_mel
from qwen3_asr.loader import random_asr, random_encoder
from qwen3_asr.model import AUDIO, AsrModel
from qwen3_asr.prompts import PromptBuilder
from qwen3_asr.sizes import SIZES

SECONDS = 5.0
TOKENS = 20
"""Of a clip: a little more than fast speech has."""


class Bench:
    def __init__(self, arguments: argparse.Namespace) -> None:
        self.tiny: bool = arguments.tiny
        self.size = "tiny" if self.tiny else arguments.size
        self.device = torch.device(arguments.device)
        self.cuda = self.device.type == "cuda"
        self.figures: Figures = {}
        self._seed = 0

    def build(self) -> None:
        """The models alone, for parts that need no pipeline."""
        config, self.tokenizer = SIZES[self.size].build()
        dtype = torch.bfloat16 if self.cuda else torch.float32
        self.model: AsrModel = shared.endless(random_asr(config, 0, device=self.device, dtype=dtype))
        self.encoder: AudioEncoder = random_encoder(config.audio, 0, device=self.device, dtype=dtype)

    def drop(self) -> None:
        del self.model, self.encoder
        if self.cuda:
            torch.cuda.empty_cache()

    def seed(self) -> int:
        self._seed += 1
        return self._seed

    def timed(self, call: Callable[[], object], times: int) -> float:
        """Median seconds, after one call that is not counted."""
        found = []
        for attempt in range(times + 1):
            sync(self.device)
            start = time.perf_counter()
            call()
            sync(self.device)
            if attempt:
                found.append(time.perf_counter() - start)
        return statistics.median(found)

    def engine(self, running: int) -> TorchEngine:
        options = {"max_running": running, "kv_tokens": running * 192, "prefill_chunk": 8192}
        made = TorchEngine(self.model, parse_options(options))
        made.start()
        return made

    def prompt(self) -> Prompt:
        return shared.prompt(self.tokenizer, self.model, SECONDS, self.seed())

    # Parts ----------------------------------------------------------------------------------------------------------

    def bandwidth(self) -> None:
        """Read bandwidth, and from it the floors of a token."""
        rate = read_rate(self.device)
        self.figures["read_gb_per_s"] = rate / 1e9
        size = self.model.dtype.itemsize
        weights = size * sum(w.numel() for w in shared.weights_of(self.model))
        kv = self.model.kv
        per_token = 2 * kv.layers * kv.kv_heads * kv.head_dim * size
        for batch in (1, 8, 64):
            self.figures[f"floor_ms_{batch}"] = 1e3 * (weights + per_token * batch * 95) / rate

    def features(self) -> None:
        waves = [shared.sound(SECONDS, self.seed()) for _ in range(8)]
        seconds = self.timed(lambda: [log_mel(wave) for wave in waves], 3)
        self.figures["features_clips_per_s_per_thread"] = len(waves) / seconds

    def encode(self, clips: int) -> None:
        mels = [log_mel(shared.sound(SECONDS, self.seed())) for _ in range(clips)]
        seconds = self.timed(lambda: [x.cpu() for x in self.encoder.encode(mels)], 2 if self.tiny else 8)
        self.figures[f"encoder_{clips}_ms"] = 1e3 * seconds
        self.figures[f"encoder_{clips}_clips_per_s"] = clips / seconds

    def prefill(self, engine: TorchEngine, clips: int) -> None:
        """Prompts of new clips and their first tokens."""

        def run() -> None:
            group = Lockstep(engine, clips)
            group.submit(prompts.pop(), shared.greedy(1))
            group.step()

        times = 2 if self.tiny else 6
        prompts = [[self.prompt() for _ in range(clips)] for _ in range(times + 1)]
        seconds = self.timed(run, times)
        self.figures[f"prefill_{clips}_ms"] = 1e3 * seconds
        self.figures[f"prefill_{clips}_clips_per_s"] = clips / seconds

    def decode(self, engine: TorchEngine, batch: int) -> None:
        """Steps of clips that all have their first token; the second time, when graphs have been captured."""
        steps = 6 if self.tiny else 40
        for _ in range(2):
            group = Lockstep(engine, batch)
            group.submit([self.prompt() for _ in range(batch)], shared.greedy(steps + 2))
            group.step()
            start = time.perf_counter()
            group.step(steps)
            seconds = (time.perf_counter() - start) / steps
            group.end()
        self.figures[f"batch{batch}_ms_per_step"] = 1e3 * seconds
        self.figures[f"batch{batch}_tokens_per_s"] = batch / seconds

    def first_token(self, engine: TorchEngine) -> None:
        """From the samples of a clip to its first token, when nothing else runs."""
        builder, found = PromptBuilder(self.tokenizer), []
        for attempt in range(3 if self.tiny else 12):
            wave, stream = shared.sound(SECONDS, self.seed()), Stream()
            start = time.perf_counter()
            embeds = self.encoder.encode([log_mel(wave)])[0].cpu()
            ids = np.array(builder.build(len(embeds), language="en"), np.int64)
            params = SamplingParams(max_new_tokens=1, temperature=0.0)
            engine.submit("first", Prompt(tokens=ids, embeds={AUDIO: embeds}), params, stream)
            stream.wait()
            if attempt:
                found.append(1e3 * (stream.times[0] - start))
        self.figures["first_token_ms"] = statistics.median(found)

    def recipe(self, at_once: int, clips: int) -> None:
        """Clips per second through the whole recipe: wav files in, text out, ``at_once`` under way."""
        self.figures |= asyncio.run(self._recipe(at_once, clips))

    async def _recipe(self, at_once: int, clips: int) -> Figures:
        plugins = Plugins.load()
        device = str(self.device)
        sets = [
            *(
                f"{stage}.{option}"
                for stage in ("encoder", "ar")
                for option in (f"random={self.size}", f"device={device}")
            ),
            *(
                "audio.workers=4",
                "encoder.max_batch=64",
                "encoder.max_cost=400",
                "encoder.cache_mb=0",
                "ar.prompt_workers=4",
            ),
            *(f"ar.torch.max_running={at_once}", f"ar.torch.kv_tokens={at_once * 192}", "ar.torch.prefill_chunk=8192"),
            *("ar.engine=torch", f"limits.max_requests={at_once}"),
        ]
        (config,) = configure([plugins.recipe("qwen3-asr-random")], sets=sets)
        pipeline = await Pipeline.load(config, plugins)
        files = [wav(shared.sound(SECONDS, self.seed()), SAMPLE_RATE) for _ in range(64)]
        gate, numbers = asyncio.Semaphore(at_once), iter(range(1 << 30))
        waits: list[float] = []

        async def one() -> None:
            number = next(numbers)
            # Files that differ, without the time to make that many: other bytes at the end of the sound.
            audio = files[number % len(files)].copy()
            audio[-4:] = np.frombuffer(number.to_bytes(4, "little"), np.uint8)
            params = {"max_new_tokens": TOKENS}
            async with gate:
                start = time.perf_counter()
                async with pipeline.submit(TranscriptionRequest(audio=audio, language="en", params=params)) as stream:
                    async for chunk in stream:
                        if chunk.text:
                            break
                    waits.append(time.perf_counter() - start)
                    async for _ in stream:
                        pass

        try:
            await asyncio.gather(*(one() for _ in range(at_once)))  # captures graphs
            waits.clear()
            start = time.perf_counter()
            await asyncio.gather(*(one() for _ in range(clips)))
            seconds = time.perf_counter() - start
        finally:
            await pipeline.close()
        name = f"recipe_{at_once}"
        return {
            f"{name}_clips_per_s": clips / seconds,
            f"{name}_audio_s_per_s": clips * SECONDS / seconds,
            f"{name}_first_text_ms": 1e3 * statistics.median(waits),
        }


def run(arguments: argparse.Namespace) -> tuple[Figures, list[str]]:
    begin = time.perf_counter()
    bench = Bench(arguments)
    tiny = bench.tiny
    bench.build()
    most = 16 if tiny else 256
    engine = bench.engine(most)
    alone: list[tuple[str, Callable[[], None]]] = [
        ("bandwidth", bench.bandwidth),
        ("features", bench.features),
        ("first token", lambda: bench.first_token(engine)),
        *((f"encoder, {n} clips", lambda n=n: bench.encode(n)) for n in ((1, 8) if tiny else (1, 8, 64))),
        *((f"prefill, {n} clips", lambda n=n: bench.prefill(engine, n)) for n in ((1, 8) if tiny else (1, 8, 64))),
        *((f"decode, {n}", lambda n=n: bench.decode(engine, n)) for n in ((1, 8) if tiny else (1, 8, 64, 256))),
    ]
    # Each loads a recipe of its own, after the parts above have been let go.
    whole: list[tuple[str, Callable[[], None]]] = [
        (f"recipe, {n} at once", lambda n=n, c=c: bench.recipe(n, c))
        for n, c in (((8, 24),) if tiny else ((256, 2048), (64, 1024), (1, 20)))
    ]
    # What matters most comes first.
    engine_parts, first = alone, whole[:1]
    bench.figures["build_s"] = time.perf_counter() - begin
    limit = arguments.limit
    missed = run_parts([*engine_parts[:3], *first, *engine_parts[3:]], begin, limit)
    engine.close()
    bench.drop()
    missed += run_parts(whole[1:], begin, limit)
    bench.figures["total_s"] = time.perf_counter() - begin
    if bench.cuda:
        bench.figures["memory_gb"] = torch.cuda.max_memory_allocated() / 1e9
    return bench.figures, missed


def main() -> None:
    arguments = cuda_arguments(__doc__, ("0.6b", "1.7b")).parse_args()
    figures, missed = run(arguments)
    show_figures(figures, {}, missed)
    if "recipe_256_clips_per_s" in figures and arguments.size == "0.6b":
        found = figures["recipe_256_clips_per_s"]
        show_lines([(f"{found:.0f} clips of {SECONDS:g} s per second", "goal 300", found > 300)])
    write(figures, arguments.json)


if __name__ == "__main__":
    main()
