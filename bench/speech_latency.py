"""Speech of the embedded voice over HTTP: first audio of a 12-word sentence, and sixteen requests at once.

Prints the time to the first byte of sound at one stream (limit: 200 ms at the median on an idle machine), and whether
each of sixteen concurrent answers equals the answer to the same request alone, sample for sample.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time

import httpx

from serving import launched

SENTENCE = "The gardener planted a long row of tomatoes behind the wooden shed."
LIMIT_MS = 200.0


async def first_audio(client: httpx.AsyncClient, fmt: str) -> tuple[float, float]:
    """Milliseconds to the first bytes of sound, and to the end. A container's header is no sound."""
    start = time.perf_counter()
    first = 0.0
    received = 0
    body = {"input": SENTENCE, "response_format": fmt}
    async with client.stream("POST", "/v1/audio/speech", json=body) as answer:
        answer.raise_for_status()
        async for data in answer.aiter_bytes():
            received += len(data)
            if not first and received > 1000:
                first = time.perf_counter() - start
    return 1e3 * first, 1e3 * (time.perf_counter() - start)


async def spoken(client: httpx.AsyncClient, text: str) -> bytes:
    answer = await client.post("/v1/audio/speech", json={"input": text, "response_format": "pcm"})
    answer.raise_for_status()
    return answer.content


async def measure(url: str, repeat: int) -> bool:
    async with httpx.AsyncClient(base_url=url, timeout=120) as client:
        print(f"{'12 words, one stream':24}{'first ms p50':>14}{'p95':>8}{'whole ms p50':>14}{'limit ms':>10}")
        medians = []
        for fmt in ("pcm", "mp3"):
            await first_audio(client, fmt)
            times = [await first_audio(client, fmt) for _ in range(repeat)]
            firsts = sorted(first for first, _ in times)
            medians.append(statistics.median(firsts))
            whole = statistics.median(end for _, end in times)
            p95 = firsts[int(0.95 * (len(firsts) - 1))]
            print(f"{fmt:24}{medians[-1]:14.1f}{p95:8.1f}{whole:14.1f}{LIMIT_MS:10.0f}")
        texts = [f"{SENTENCE} This is listener number {number}, who waits." for number in "abcdefghijklmnop"]
        alone = [await spoken(client, text) for text in texts]
        start = time.perf_counter()
        together = await asyncio.gather(*(spoken(client, text) for text in texts))
        seconds = time.perf_counter() - start
    same = sum(one == other for one, other in zip(alone, together, strict=True))
    audio = sum(map(len, together)) / 2 / 24000
    print(f"16 at once: {same} of 16 equal their solo run; {audio:.0f} s of audio in {seconds:.2f} s")
    return max(medians) <= LIMIT_MS and same == len(texts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", help="a running server, such as http://127.0.0.1:8000")
    parser.add_argument("--repeat", type=int, default=30)
    options = parser.parse_args()
    if options.url:
        passed = asyncio.run(measure(options.url, options.repeat))
    else:
        with launched() as url:
            passed = asyncio.run(measure(url, options.repeat))
    if not passed:
        raise SystemExit("over the limit, or an answer differs")


if __name__ == "__main__":
    main()
