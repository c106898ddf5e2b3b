"""``omni launch`` with the default pair, as a person meets it: what it prints works, and Ctrl-C is kind."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import httpx
import pytest

from omni.cli.banner import SPOKEN

pytestmark = pytest.mark.slow

LONG = "The old clock on the wall struck twelve as the last guest left the hall. " * 60


def words(text: str) -> list[str]:
    return re.findall(r"[a-z]+", text.lower())


def shell(command: str, cwd: Path, **variables: str) -> str:
    env = {"PATH": os.environ["PATH"]} | variables
    done = subprocess.run(command, shell=True, cwd=cwd, env=env, capture_output=True, text=True, timeout=60, check=True)
    return done.stdout


@pytest.fixture(scope="module")
def server(launch):
    with launch() as running:
        yield running


def test_banner_says_what_is_served(server) -> None:
    text = "\n".join(server.banner)
    assert "speech, licence Apache-2.0" in text
    assert "voices: heart" in text
    assert "transcription, licence MIT" in text
    assert "tts-1" in text
    assert httpx.get(f"{server.url}/ready").status_code == 200


@pytest.mark.skipif(shutil.which("curl") is None, reason="the printed lines need curl")
def test_printed_lines_work_as_they_are(server, tmp_path) -> None:
    speak, hear = server.curls
    shell(speak, tmp_path)
    assert words(json.loads(shell(hear, tmp_path))["text"]) == words(SPOKEN)


@pytest.mark.skipif(shutil.which("curl") is None, reason="the printed lines need curl")
def test_printed_lines_work_with_a_key(launch, tmp_path) -> None:
    with launch("--recipe", "hibari-tts", OMNI_API_KEY="open sesame") as server:
        assert "open sesame" not in "\n".join(server.banner)
        (speak,) = server.curls
        shell(speak, tmp_path)
        assert "invalid_api_key" in (tmp_path / "speech.mp3").read_text()
        shell(speak, tmp_path, OMNI_API_KEY="open sesame")
        assert (tmp_path / "speech.mp3").stat().st_size > 5000


def test_openai_names_can_be_switched_off(launch) -> None:
    with launch("--recipe", "hibari-tts", "--no-openai-names") as server:
        body = {"model": "tts-1", "input": "Hello.", "voice": "heart"}
        assert httpx.post(f"{server.url}/v1/audio/speech", json=body).status_code == 404
        body = {"model": "hibari-tts", "input": "Hello.", "voice": "alloy"}
        assert httpx.post(f"{server.url}/v1/audio/speech", json=body).status_code == 400


def test_interrupt_lets_a_stream_finish(launch) -> None:
    body = {"model": "hibari-tts", "input": LONG, "response_format": "pcm", "stream_format": "sse"}
    with launch("--recipe", "hibari-tts") as server:
        with httpx.stream("POST", f"{server.url}/v1/audio/speech", json=body, timeout=60) as answer:
            lines = answer.iter_lines()
            assert "speech.audio.delta" in next(lines)
            server.interrupt()
            server.wait_for("draining")
            assert httpx.get(f"{server.url}/ready").status_code == 503
            events = [line for line in lines if line.startswith("data:")]
        assert "speech.audio.done" in events[-1]
        assert server.exit_code() == 0
        assert "Traceback" not in server.errors()


def test_second_interrupt_does_not_wait(launch) -> None:
    body = {"model": "hibari-tts", "input": LONG, "response_format": "pcm", "stream_format": "sse"}
    with (
        launch("--recipe", "hibari-tts", "--drain-seconds", "300") as server,
        httpx.stream("POST", f"{server.url}/v1/audio/speech", json=body, timeout=60) as answer,
    ):
        lines = answer.iter_lines()
        assert "speech.audio.delta" in next(lines)
        server.interrupt()
        server.wait_for("draining")
        server.interrupt()
        assert server.exit_code() == 0
        last = json.loads([line for line in lines if line][-1].removeprefix("data: "))
    assert last["type"] == "error"
    assert last["error"]["message"] == "the server is shutting down"


def test_idle_server_ends_at_once(launch) -> None:
    with launch("--recipe", "hibari-tts") as server:
        server.interrupt()
        assert server.exit_code() == 0


def test_busy_port_is_named(server, omni) -> None:
    port = server.url.rpartition(":")[2]
    done = omni("launch", "--port", port)
    assert done.returncode == 1
    assert done.stderr == f"error: port {port} on 127.0.0.1 is already in use; choose another with --port\n"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--recipe", "nothing"], "there is no recipe 'nothing'"),
        (["--set", "nothing.x=1"], "no served recipe has a stage 'nothing'"),
        (["--set", "hibari-tts/synthesis.nothing=1"], "options of this stage"),
        (["--set", "hibari-tts/synthesis.workers=0"], "greater than or equal to 1"),
        (["--set", "hibari-tts/executor=nothing"], "there is no executor 'nothing'"),
        (["--weights", "hibari-tts=/no/such/folder"], "there is no such folder"),
        (["--config", "/no/such/file.yaml"], "No such file"),
    ],
)
def test_errors_are_one_line(omni, args, message) -> None:
    done = omni("launch", "--port", "0", *args)
    assert done.returncode == 1
    *progress, error = done.stderr.splitlines()
    assert error.startswith("error: ")
    assert message in error
    assert all(line.startswith("[") for line in progress)
    assert done.stdout == ""


def test_say_and_transcribe_here(omni, tmp_path) -> None:
    said = omni("say", SPOKEN, "-o", tmp_path / "hello.wav")
    assert (said.returncode, said.stdout, said.stderr) == (0, "", "")
    heard = omni("transcribe", tmp_path / "hello.wav")
    assert heard.returncode == 0, heard.stderr
    assert words(heard.stdout) == words(SPOKEN)
    assert heard.stdout.endswith("\n")


def test_say_and_transcribe_with_a_server(server, omni, tmp_path) -> None:
    said = omni("say", SPOKEN, "-o", tmp_path / "hello.mp3", "--url", server.url, "--speed", "0.9")
    assert said.returncode == 0, said.stderr
    heard = omni("transcribe", tmp_path / "hello.mp3", "--url", f"{server.url}/v1/", "--words")
    assert heard.returncode == 0, heard.stderr
    found = json.loads(heard.stdout)
    assert [words(word["word"]) for word in found["words"]] == [[word] for word in words(SPOKEN)]
