"""What serving costs beyond the model: Fish S2-Pro with random weights over HTTP beside its engine and codec alone.

    python bench/fish_serve.py [--size small] [--width 0.125] [--streams 1 4 8] [--frames 32] [--rounds 3]

Two processes, each with the same weights, take turns: a server (`omni launch`, every setting at its default) and the
bare parts: the AR engine with the same prompts and seeds, then the codec on the codes it gave, in the chunks that the
vocoder takes. Streams start together. A frame is 46 ms of sound.

* first sound: from the request to its first bytes (pcm at 44.1 kHz); parts: prefill, one step, one frame of the codec.
* RTF: time until all streams have ended over the sound of one stream; below 1 every stream plays without a gap.
* CPU: of the whole process, per frame. Its difference is what HTTP, scheduling and the hops between stages cost; it
  does not depend on what else the machine does, as times do. The best of the rounds counts.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from typing import Any

import httpx
import psutil

FRAME, RATE = 2048, 44100
TEXT = "The old lighthouse keeper climbed the narrow stairs, visitor number {}."


@dataclass
class Numbers:
    """Seconds; ``cpu`` per frame."""

    first: float = float("inf")
    rtf: float = float("inf")
    cpu: float = float("inf")
    engine: float = float("inf")

    def keep(self, **found: float) -> None:
        for name, value in found.items():
            setattr(self, name, min(getattr(self, name), value))


class Child:
    def __init__(self, command: list[str], threads: int) -> None:
        self.process = subprocess.Popen(
            [sys.executable, *command],
            env=os.environ | {"OMP_NUM_THREADS": str(threads)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._info = psutil.Process(self.process.pid)

    def line(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.process.args} has ended")
        return line

    def cpu(self) -> float:
        times = self._info.cpu_times()
        return float(times.user + times.system)

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(30)


# The server -------------------------------------------------------------------------------------------------------


class Served(Child):
    def __init__(self, options: argparse.Namespace) -> None:
        sets = [f"ar.random={options.size}", *(f"{s}.random_width={options.width}" for s in ("reference", "vocoder"))]
        command = ["-m", "omni", "launch", "--recipe", "fish-s2-pro-random", "--port", "0"]
        super().__init__(command + [part for entry in sets for part in ("--set", entry)], options.threads)
        self.url = ""
        while not self.url:
            words = self.line().split()
            self.url = next((word for word in words if word.startswith("http://")), "").rstrip("/.")

    def measure(self, streams: int, frames: int, numbers: Numbers) -> None:
        before, started = self.cpu(), time.perf_counter()
        firsts, made = asyncio.run(self._all(streams, frames))
        wall = time.perf_counter() - started
        numbers.keep(
            first=sorted(firsts)[len(firsts) // 2],
            rtf=wall * streams / (made * FRAME / RATE),
            cpu=(self.cpu() - before) / made,
        )

    async def _all(self, streams: int, frames: int) -> tuple[list[float], int]:
        async with httpx.AsyncClient(base_url=self.url, timeout=600) as client:
            results = await asyncio.gather(*(self._one(client, i, frames) for i in range(streams)))
        return [first for first, _ in results], sum(size for _, size in results) // (2 * FRAME)

    async def _one(self, client: httpx.AsyncClient, number: int, frames: int) -> tuple[float, int]:
        started, first, size = time.perf_counter(), 0.0, 0
        body = {"input": TEXT.format(number), "seed": number, "max_new_tokens": frames}
        pcm = {"response_format": "pcm", "sample_rate": "native"}
        async with client.stream("POST", "/v1/audio/speech", json={**body, **pcm}) as answer:
            answer.raise_for_status()
            async for piece in answer.aiter_raw():
                first = first or time.perf_counter() - started
                size += len(piece)
        return first, size


# The bare parts ---------------------------------------------------------------------------------------------------


@dataclass
class Collected:
    """One request's codes and when the first of them came; an engine's sink."""

    codes: list[Any] = field(default_factory=list)
    first: float = 0.0
    done: threading.Event = field(default_factory=threading.Event)

    def room(self) -> int:
        return 1

    def push(self, output: Any) -> None:
        self.first = self.first or time.perf_counter()
        if output.codes is not None:
            self.codes.append(output.codes)

    def finish(self) -> None:
        self.done.set()

    def fail(self, error: Exception) -> None:
        raise error

    def on_room(self, wake: Any) -> None: ...


def parts(options: argparse.Namespace) -> None:
    """The child that runs engine and codec: for every line ``streams frames`` one of results, as JSON."""
    import numpy as np
    import torch

    from fish_s2pro.codec.config import CodecConfig
    from fish_s2pro.codec.loading import random_decoder
    from fish_s2pro.loader import random_ar
    from fish_s2pro.params import SpeechParams
    from fish_s2pro.prompts import Conversation
    from fish_s2pro.sizes import SIZES
    from fish_s2pro.vocoder import VocoderOptions
    from omni.codecs import StreamingDecoder
    from omni.engines.base import SamplingParams
    from omni.engines.torch import TorchEngine, parse_options

    config, tokenizer = SIZES[options.size].build()
    model = random_ar(config, 0, device=torch.device("cpu"), dtype=torch.float32)
    engine = TorchEngine(model, parse_options({}))
    engine.start()
    policy, defaults = VocoderOptions(), SpeechParams()
    codec = StreamingDecoder(
        random_decoder(CodecConfig().scaled(options.width)),
        streams=policy.streams,
        max_frames=policy.max_chunk,
        max_batch=policy.max_batch,
    )

    def run(streams: int, frames: int) -> dict[str, float]:
        cpu, started = time.process_time(), time.perf_counter()
        sinks = [Collected() for _ in range(streams)]
        for i, sink in enumerate(sinks):
            prompt = Conversation(tokenizer, model.codebooks).ask(TEXT.format(i), 30_000)
            params = SamplingParams(
                max_new_tokens=frames,
                temperature=defaults.temperature,
                top_p=defaults.top_p,
                top_k=defaults.top_k,
                seed=i,
            )
            engine.submit(str(i), prompt, params, sink)
        for sink in sinks:
            sink.done.wait()
        engine_wall = time.perf_counter() - started
        codes = [torch.from_numpy(np.stack(sink.codes, axis=1)) for sink in sinks]
        at, chunk, first = 0, float(policy.first_chunk), 0.0
        begun = time.perf_counter()
        places = [codec.open() for _ in sinks]
        while at < max(c.shape[1] for c in codes):
            size = round(chunk)
            codec.step([(p, c[:, at : at + size]) for p, c in zip(places, codes, strict=True) if c.shape[1] > at])
            first = first or time.perf_counter() - begun
            at, chunk = at + size, min(chunk * policy.chunk_growth, policy.max_chunk)
        wall = engine_wall + time.perf_counter() - begun
        for place in places:
            codec.close(place)
        made = sum(c.shape[1] for c in codes)
        return {
            "first": sorted(sink.first - started for sink in sinks)[streams // 2] + first,
            "rtf": wall * streams / (made * FRAME / RATE),
            "engine": engine_wall * streams / (made * FRAME / RATE),
            "cpu": (time.process_time() - cpu) / made,
        }

    print("ready", flush=True)
    for line in sys.stdin:
        streams, frames = map(int, line.split())
        print(json.dumps(run(streams, frames)), flush=True)


class Parts(Child):
    def __init__(self, options: argparse.Namespace) -> None:
        command = [__file__, "--parts", "--size", options.size, "--width", str(options.width)]
        super().__init__(command, options.threads)
        self.line()

    def measure(self, streams: int, frames: int, numbers: Numbers) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{streams} {frames}\n")
        self.process.stdin.flush()
        numbers.keep(**json.loads(self.line()))


def table(results: dict[int, tuple[Numbers, Numbers]]) -> str:
    head = (
        *("streams", "first sound ms", "parts ms", "RTF", "parts RTF", "engine alone RTF"),
        *("CPU ms/frame", "parts CPU ms/frame", "CPU ratio"),
    )
    lines = [" | ".join(head), " | ".join("---" for _ in head)]
    for streams, (http, bare) in results.items():
        cells = [f"{1000 * http.first:.0f}", f"{1000 * bare.first:.0f}"]
        cells += [f"{http.rtf:.2f}", f"{bare.rtf:.2f}", f"{bare.engine:.2f}"]
        cells += [f"{1000 * http.cpu:.1f}", f"{1000 * bare.cpu:.1f}", f"{http.cpu / bare.cpu:.3f}"]
        lines.append(" | ".join([str(streams), *cells]))
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", default="small", choices=("tiny", "small", "full"))
    parser.add_argument("--width", type=float, default=0.125, help="of the codec, as a fraction of the published one")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 4, 8])
    parser.add_argument("--frames", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--parts", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.parts:
        parts(options)
        return
    served, bare = Served(options), Parts(options)
    results = {streams: (Numbers(), Numbers()) for streams in options.streams}
    try:
        for side in (served, bare):
            side.measure(2, 4, Numbers())
        for _ in range(options.rounds):
            for streams, numbers in results.items():
                for side, kept in zip((served, bare), numbers, strict=True):
                    side.measure(streams, options.frames, kept)
    finally:
        served.close()
        bare.close()
    print(f"{platform.machine()}, {os.cpu_count()} cores, {options.threads} thread(s) per operation")
    print(f"AR {options.size}, codec at {options.width:g} of its width, {options.frames} frames a stream\n")
    print(table(results))


if __name__ == "__main__":
    main()
