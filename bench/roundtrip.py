"""Word error rate of what a server says and then hears: sentences to speech to text, over HTTP.

Without --url it starts ``omni launch`` with the default recipes on a free port. Errors are counted after Whisper's
normaliser for English. The limit is 5 % for the first five sentences and for all twenty.
"""

from __future__ import annotations

import argparse
import io
import socket
import subprocess
import sys
import time
import wave
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import httpx
import jiwer
from whisper_normalizer.english import EnglishTextNormalizer

LIMIT = 0.05

SENTENCES = (
    "The gardener planted a long row of tomatoes behind the little wooden shed.",
    "We crossed the narrow bridge just before the evening train came around the bend.",
    "Please leave the keys under the blue flower pot when you go to the market.",
    "A cold wind from the mountains blew dry leaves across the empty village square.",
    "My brother learned to play the trumpet in a school band by the harbor.",
    "Nobody in the office knew why the printer only worked on rainy mornings.",
    "The doctor told her patient to drink more water and to sleep with an open window.",
    "Every summer the children built a raft and floated slowly down the green river.",
    "He opened the letter carefully, read it twice, and put it back into the drawer.",
    "The bakery on the corner sells warm bread and apple cake from early in the morning.",
    "After the storm, fishermen mended their nets and painted the boats bright red.",
    "She found an old photograph of her grandmother standing in front of a bicycle shop.",
    "The museum closes early on Monday, so we should visit the library instead.",
    "Two tired travelers shared a pot of tea while the snow covered the road outside.",
    "The teacher asked the class to write a short story about a lost umbrella.",
    "Our neighbor keeps bees, and in autumn he gives everyone a jar of honey.",
    "The pilot waited on the runway until the heavy fog had lifted over the fields.",
    "It takes patience to teach a young dog to walk quietly beside a busy street.",
    "The orchestra played softly while dancers in white costumes moved across the stage.",
    "In the attic we discovered a wooden chest full of maps, coins and faded ribbons.",
)


def heard(client: httpx.Client, text: str) -> tuple[str, float, float, float]:
    """What the server hears of what it says; seconds of audio, to speak and to recognise."""
    start = time.perf_counter()
    spoken = client.post("/v1/audio/speech", json={"input": text, "response_format": "wav"})
    _check(spoken)
    said = time.perf_counter()
    form = {"language": "en", "response_format": "json"}
    written = client.post("/v1/audio/transcriptions", data=form, files={"file": ("speech.wav", spoken.content)})
    _check(written)
    return str(written.json()["text"]), _seconds(spoken.content), said - start, time.perf_counter() - said


def _check(answer: httpx.Response) -> None:
    if answer.is_error:
        raise SystemExit(f"{answer.request.method} {answer.request.url}: {answer.status_code} {answer.text}")


def _seconds(data: bytes) -> float:
    """Length of a WAV; a streamed one does not say it in its header."""
    with wave.open(io.BytesIO(data)) as file:
        frame: int = file.getnchannels() * file.getsampwidth() * file.getframerate()
    return (len(data) - data.index(b"data") - 8) / frame


@contextmanager
def server() -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    process = subprocess.Popen([sys.executable, "-m", "omni", "launch", "--port", str(port)], stdout=subprocess.DEVNULL)
    try:
        _wait_until_ready(url, process)
        yield url
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_until_ready(url: str, process: subprocess.Popen[bytes], seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if process.poll() is not None:
            raise SystemExit(f"omni launch ended with {process.returncode}")
        try:
            if httpx.get(f"{url}/ready").status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.05)
    raise SystemExit(f"omni launch was not ready after {seconds:g} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", help="a running server, such as http://127.0.0.1:8000")
    parser.add_argument("--sentences", type=int, default=len(SENTENCES), choices=range(1, len(SENTENCES) + 1))
    parser.add_argument("--api-key", default="none")
    options = parser.parse_args()
    normal = EnglishTextNormalizer()
    said: list[str] = []
    written: list[str] = []
    times: list[tuple[float, float, float]] = []
    with nullcontext(options.url) if options.url else server() as url:
        headers = {"Authorization": f"Bearer {options.api_key}"}
        with httpx.Client(base_url=url, headers=headers, timeout=300) as client:
            for text in SENTENCES[: options.sentences]:
                transcript, *seconds = heard(client, text)
                times.append((seconds[0], seconds[1], seconds[2]))
                said.append(normal(text))
                written.append(normal(transcript))
                if said[-1] != written[-1]:
                    print(f"said   {text}\nheard  {transcript}")
    counts = sorted({min(5, len(said)), len(said)})
    print(f"{'sentences':>10}{'words':>8}{'WER %':>8}{'limit %':>9}{'audio s':>9}{'speak s':>9}{'hear s':>8}")
    rates = [float(jiwer.wer(said[:count], written[:count])) for count in counts]
    for count, rate in zip(counts, rates, strict=True):
        words = sum(len(text.split()) for text in said[:count])
        audio, speak, hear = (sum(column) for column in zip(*times[:count], strict=True))
        print(f"{count:10}{words:8}{100 * rate:8.2f}{100 * LIMIT:9.1f}{audio:9.1f}{speak:9.2f}{hear:8.2f}")
    if max(rates) > LIMIT:
        raise SystemExit("the word error rate is over its limit")


if __name__ == "__main__":
    main()
