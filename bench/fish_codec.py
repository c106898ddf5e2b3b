"""Codec of Fish S2-Pro on random weights: whole decode, exact streaming, batches of streams, encoding.

    python bench/fish_codec.py                      # half width (98 M parameters), one thread
    python bench/fish_codec.py --width 1            # the published dimensions (391 M)
    python bench/fish_codec.py --device cuda --dtype bfloat16 --width 1 --batches 1 8 64

Times are per frame (46.4 ms of audio). The cases take turns and the best of the rounds counts, so that what else runs
on the machine hits all of them alike. "cpu ms" is the process's CPU time over all threads.
"""

from __future__ import annotations

import argparse
import platform
import time
from collections.abc import Callable

import torch

from fish_s2pro.codec.config import CodecConfig
from fish_s2pro.codec.decoder import CodecDecoder
from fish_s2pro.codec.loading import random_decoder, random_encoder
from omni.codecs import StreamingDecoder

_STEPS = 8

Case = Callable[[], int]
"""Runs once; gives the number of frames that it made."""


def random_codes(config: CodecConfig, frames: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    sizes = config.quantizer.codebook_sizes
    return torch.stack([torch.randint(0, size, (frames,), generator=generator) for size in sizes])


def streaming(decoder: CodecDecoder, codes: torch.Tensor, chunk: int, streams: int) -> tuple[Case, StreamingDecoder]:
    """Streams that never end, eight steps a round."""
    stream = StreamingDecoder(decoder, streams=streams, max_frames=8, max_batch=streams)
    places = [stream.open() for _ in range(streams)]
    job = [(place, codes[:, :chunk]) for place in places]

    def run() -> int:
        for _ in range(_STEPS):
            stream.step(job)
        return chunk * streams * _STEPS

    return run, stream


def measure(cases: dict[str, Case], rounds: int, device: torch.device) -> dict[str, tuple[float, float]]:
    """Wall and CPU milliseconds per frame."""
    best: dict[str, tuple[float, float]] = {name: (float("inf"), float("inf")) for name in cases}
    for _ in range(rounds + 1):
        for name, case in cases.items():
            if device.type == "cuda":
                torch.cuda.synchronize()
            wall, cpu = time.perf_counter(), time.process_time()
            frames = case()
            spent = (time.perf_counter() - wall) / frames * 1e3, (time.process_time() - cpu) / frames * 1e3
            best[name] = min(best[name][0], spent[0]), min(best[name][1], spent[1])
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=float, default=0.5, help="fraction of the published widths")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16", "float16"])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--frames", type=int, default=32, help="length of the whole decode")
    parser.add_argument("--batches", type=int, nargs="+", default=[8], help="streams that share a step")
    parser.add_argument("--encode", action="store_true", help="measure the encoder as well")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    config = CodecConfig().scaled(args.width)
    device = torch.device(args.device)
    decoder = random_decoder(config, device=device, dtype=getattr(torch, args.dtype))
    codes = random_codes(config, args.frames)

    def whole() -> int:
        decoder.decode(codes[None].to(device)).cpu()
        return args.frames

    cases: dict[str, Case] = {"whole decode": whole}
    for chunk in (1, 4, 8):
        cases[f"1 stream by {chunk}"], alone = streaming(decoder, codes, chunk, 1)
    for streams in args.batches:
        cases[f"{streams} streams by 1"], _ = streaming(decoder, codes, 1, streams)
    if args.encode:
        encoder = random_encoder(config, device=device)
        wave = torch.randn(args.frames * config.frame_samples) * 0.1

        def encode() -> int:
            encoder.encode(wave).cpu()
            return args.frames

        cases["encode"] = encode
    results = measure(cases, args.rounds, device)

    print(f"width {args.width}, {args.device} {args.dtype}, {args.threads} threads, {platform.machine()}")
    print(f"state per stream {alone.bytes_per_stream / 1e6:.2f} MB")
    print(f"{'case':20} {'ms/frame':>9} {'cpu ms':>9} {'of whole':>9} {'RTF':>7}")
    reference = results["whole decode"]
    frame_ms = config.frame_samples / config.sample_rate * 1e3
    for name, (wall, cpu) in results.items():
        ratio = cpu / reference[1] if device.type == "cpu" else wall / reference[0]
        print(f"{name:20} {wall:9.2f} {cpu:9.2f} {ratio:9.2f} {wall / frame_ms:7.3f}")


if __name__ == "__main__":
    main()
