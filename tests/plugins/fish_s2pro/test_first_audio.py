"""The first sound leaves after the prefill and one frame: nothing on its way waits for more."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from fish_serving import FRAME, PATIENCE, samples_of

from omni.engines.torch.runner import Runner

pytestmark = pytest.mark.xdist_group("fish_http")

TEXT = "Hello world, this is a test."


class Gate:
    """Lets the engine make ``frames`` frames and no more until it is opened."""

    def __init__(self, frames: int) -> None:
        self._left = frames
        self._open = threading.Event()

    def open(self) -> None:
        self._open.set()

    def __call__(self) -> None:
        if self._left == 0:
            assert self._open.wait(PATIENCE), "nothing arrived while the engine stood still"
        else:
            self._left -= 1


@pytest.fixture
def gate(monkeypatch) -> Iterator[Any]:
    decode = Runner.decode
    gates: list[Gate] = []

    def gated(self: Runner, batch: Any) -> Any:
        gates[-1]()
        return decode(self, batch)

    def make(frames: int) -> Gate:
        gates.append(Gate(frames))
        return gates[-1]

    monkeypatch.setattr(Runner, "decode", gated)
    yield make
    for one in gates:
        one.open()


@pytest.mark.parametrize(
    ("path", "field", "more"),
    [
        ("/v1/audio/speech", "input", {"response_format": "pcm", "sample_rate": "native"}),
        ("/v1/tts", "text", {"format": "pcm"}),
    ],
)
def test_each_of_the_first_frames_leaves_before_the_next_is_made(served, gate, path, field, more) -> None:
    body = {field: TEXT, "temperature": 0, "max_new_tokens": 6, **more}
    one = gate(1)
    with served.client() as client, client.stream("POST", path, json=body) as answer:
        heard = b""
        pieces = answer.iter_raw()
        while len(heard) < 2 * FRAME:
            heard += next(pieces)
        assert len(heard) == 2 * FRAME
        one.open()
        heard += b"".join(pieces)
    assert len(samples_of(heard)) == 6 * FRAME


@pytest.mark.parametrize(
    ("more", "frames"),
    [
        ({"response_format": "wav", "sample_rate": "native"}, 1),
        # 24 kHz, as OpenAI's clients take pcm: the resampler looks ahead.
        ({"response_format": "pcm"}, 2),
        ({"response_format": "flac"}, 2),
        ({"response_format": "mp3"}, 3),
        ({"response_format": "opus"}, 2),
    ],
)
def test_other_formats_wait_for_no_more_than_their_encoder(served, gate, more, frames) -> None:
    one = gate(frames)
    body = {"input": TEXT, "temperature": 0, "max_new_tokens": 6, **more}
    with served.client() as client, client.stream("POST", "/v1/audio/speech", json=body) as answer:
        pieces = answer.iter_raw()
        first = b""
        while len(first) <= 64:  # more than a header
            first += next(pieces)
        one.open()
        assert len(b"".join(pieces)) > len(first)
