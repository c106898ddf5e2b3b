"""The embedded pair over HTTP with OpenAI's client: what is spoken is heard again."""

from __future__ import annotations

import asyncio
import io
import re
import threading
from collections.abc import Iterator

import av
import httpx
import openai
import pytest

from omni.config import configure
from omni.plugins import Plugins
from omni.server.app import create_app
from omni.server.openai_names import model_aliases
from omni.server.run import Server, bind
from omni.server.settings import ServerSettings
from omni.service import Service

pytest.importorskip("hibari", reason="needs the extra demo")
pytest.importorskip("faster_whisper", reason="needs the extra demo")
pytestmark = pytest.mark.slow

FIRST = "My brother walked down the street and bought some fresh bread for dinner."
SECOND = "Please open the window, because the room is warm."
TEXT = f"{FIRST} {SECOND}"


def words(text: str) -> list[str]:
    return re.findall(r"[a-z]+", text.lower())


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    settings = ServerSettings()
    plugins = Plugins.load()
    names = ("hibari-tts", "whisper-tiny-en")

    async def load() -> Service:
        configs = configure([plugins.recipe(name) for name in names])
        return await Service.launch(configs, plugins, aliases=model_aliases(settings))

    sock = bind("127.0.0.1", 0)
    address = f"http://127.0.0.1:{sock.getsockname()[1]}"
    ready = threading.Event()
    server = Server(create_app(load, settings), ready.set)
    loops: list[asyncio.AbstractEventLoop] = []

    def run() -> None:
        with asyncio.Runner(loop_factory=server.config.get_loop_factory()) as runner:
            loops.append(runner.get_loop())
            runner.run(server.serve(sockets=[sock]))

    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert ready.wait(60)
        yield address
    finally:
        loops[0].call_soon_threadsafe(server.stop)
        thread.join(60)
    assert not thread.is_alive()


@pytest.fixture(scope="module")
def ai(url) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=url + "/v1", api_key="any", max_retries=0, timeout=60) as client:
        yield client


@pytest.fixture(scope="module")
def spoken(ai) -> bytes:
    return ai.audio.speech.create(model="tts-1", voice="alloy", input=TEXT, response_format="flac").content


@pytest.mark.parametrize("fmt", ["mp3", "opus", "aac", "flac", "wav"])
def test_a_round_trip_through_every_format(ai, fmt):
    with ai.audio.speech.with_streaming_response.create(
        model="gpt-4o-mini-tts", voice="nova", input=FIRST, response_format=fmt
    ) as response:
        sound = b"".join(response.iter_bytes())
    heard = ai.audio.transcriptions.create(model="gpt-4o-transcribe", file=(f"a.{fmt}", sound))
    assert words(heard.text) == words(FIRST)


def test_pcm_is_24_khz_and_a_stream_is_the_whole(url, spoken):
    body = {"input": TEXT, "response_format": "pcm", "voice": "alloy"}
    streamed = httpx.post(url + "/v1/audio/speech", json=body, timeout=60).content
    whole = httpx.post(url + "/v1/audio/speech", json=body | {"stream": False}, timeout=60).content
    assert streamed == whole
    with av.open(io.BytesIO(spoken)) as container:
        samples = sum(frame.samples for frame in container.decode(audio=0))
    assert len(streamed) == 2 * samples
    faster = httpx.post(url + "/v1/audio/speech", json=body | {"speed": 3}, timeout=60).content
    assert len(faster) == pytest.approx(len(streamed) / 3, rel=0.1)


def test_subtitles_and_words_have_rising_times(ai, spoken):
    srt = ai.audio.transcriptions.create(model="whisper-1", file=("a.flac", spoken), response_format="srt")
    vtt = ai.audio.transcriptions.create(model="whisper-1", file=("a.flac", spoken), response_format="vtt")
    assert srt.startswith("1\n00:00:00,")
    assert vtt.startswith("WEBVTT\n\n00:00:00.")
    assert words(re.sub(r"(?m)^\d.*$", "", srt)) == words(TEXT)
    verbose = ai.audio.transcriptions.create(
        model="whisper-1",
        file=("a.flac", spoken),
        response_format="verbose_json",
        timestamp_granularities=["word", "segment"],
    )
    assert verbose.language == "english"
    times = [time for word in verbose.words for time in (word.start, word.end)]
    assert times == sorted(times)
    assert 0 <= times[0] < times[-1] <= verbose.duration
    assert words(" ".join(word.word for word in verbose.words)) == words(TEXT)
    assert words(" ".join(segment.text for segment in verbose.segments)) == words(TEXT)


def test_events_of_both_tasks(url, ai, spoken):
    *deltas, done = ai.audio.transcriptions.create(model="gpt-4o-transcribe", file=("a.flac", spoken), stream=True)
    assert done.type == "transcript.text.done"
    assert "".join(delta.delta for delta in deltas) == done.text
    assert words(done.text) == words(TEXT)
    body = {"model": "tts-1", "input": TEXT, "voice": "alloy", "response_format": "mp3", "stream_format": "sse"}
    text = httpx.post(url + "/v1/audio/speech", json=body, timeout=60).text
    assert text.count("speech.audio.delta") >= 2
    assert text.count("speech.audio.done") == 1


def test_what_cannot_be_spoken_or_heard(ai):
    with pytest.raises(openai.BadRequestError) as unspeakable:
        ai.audio.speech.create(model="tts-1", voice="alloy", input="你好世界")
    assert unspeakable.value.param == "input"
    with pytest.raises(openai.BadRequestError) as unheard:
        ai.audio.transcriptions.create(model="whisper-1", file=("a.mp3", b"ID3 this is no sound" * 100))
    assert unheard.value.param == "file"
