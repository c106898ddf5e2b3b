"""Word error rate of what a server says and then hears: sentences to speech to text, over HTTP.

Without --url it starts ``omni launch`` with the default recipes on a free port. Errors are counted after Whisper's
normaliser for English; words that sound like others (blew, patience) are avoided where the first five are concerned.
No error is allowed in the first five sentences, 3 % in all twenty.
"""

from __future__ import annotations

import argparse
import io
import time
import wave
from contextlib import nullcontext

import httpx
import jiwer
from whisper_normalizer.english import EnglishTextNormalizer

from serving import launched

LIMITS = {5: 0.0, 20: 0.03}

SENTENCES = (
    "The gardener planted a long row of tomatoes behind the little wooden shed.",
    "We crossed the narrow bridge just before the evening train came around the bend.",
    "Please leave the keys under the blue flower pot when you go to the market.",
    "A cold wind from the mountains carried dry leaves across the empty village square.",
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


def limit(sentences: int) -> float:
    """The word error rate that is allowed for the first ``sentences`` of the list."""
    return LIMITS[min(size for size in LIMITS if size >= sentences)]


def _check(answer: httpx.Response) -> None:
    if answer.is_error:
        raise SystemExit(f"{answer.request.method} {answer.request.url}: {answer.status_code} {answer.text}")


def _seconds(data: bytes) -> float:
    """Length of a WAV; a streamed one does not say it in its header."""
    with wave.open(io.BytesIO(data)) as file:
        frame: int = file.getnchannels() * file.getsampwidth() * file.getframerate()
    return (len(data) - data.index(b"data") - 8) / frame


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
    with nullcontext(options.url) if options.url else launched() as url:
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
        print(f"{count:10}{words:8}{100 * rate:8.2f}{100 * limit(count):9.1f}{audio:9.1f}{speak:9.2f}{hear:8.2f}")
    if any(rate > limit(count) for count, rate in zip(counts, rates, strict=True)):
        raise SystemExit("the word error rate is over its limit")


if __name__ == "__main__":
    main()
