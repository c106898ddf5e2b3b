"""From binding to exit: loading, failing, draining, signals."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import pytest
import server_toys
from server_harness import Raw, Running, error, eventually, toy_plugins

from omni.config import configure
from omni.errors import ConfigError, WeightsError
from omni.server.app import create_app
from omni.server.run import bind, serve
from omni.service import Service

SPEECH, HEAR = "/v1/audio/speech", "/v1/audio/transcriptions"


def test_a_busy_port_is_an_error_that_names_it():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"port {port} on 127.0.0.1 is already in use"):
            bind("127.0.0.1", port)
    bind("127.0.0.1", port).close()


def test_hosts():
    with pytest.raises(ConfigError, match="no-such-host"):
        bind("no-such-host.invalid", 0)
    with pytest.raises(ConfigError, match=r"cannot listen on 192\.0\.2\.1"):
        bind("192.0.2.1", 0)
    sock = bind("localhost", 0)
    assert sock.getsockname()[1] > 0
    sock.close()


def test_while_models_load_health_answers_and_the_rest_is_503(start):
    gate = threading.Event()

    async def load() -> Service:
        await asyncio.to_thread(gate.wait)
        return await Service.launch(configure([server_toys.TONE]), toy_plugins())

    running = start(wait=False, factory=load)
    with httpx.Client(base_url=running.url) as http:
        assert eventually(lambda: http.get("/health").json() == {"status": "alive", "state": "loading"}, 5)
        for method, path in (("GET", "/ready"), ("GET", "/v1/models"), ("POST", SPEECH)):
            answer = http.request(method, path)
            assert answer.status_code == 503
            assert error(answer)["code"] == "loading"
            assert int(answer.headers["retry-after"]) >= 1
        assert http.get("/metrics").status_code == 200
        assert running.metric("omni_ready") == 0
        assert http.get("/v1/toy/3").status_code == 404
        gate.set()
        assert running.ready.wait(10)
        assert http.get("/ready").status_code == 200
        assert http.get("/v1/toy/3").json()["served"] == 1
        assert http.post(SPEECH, json={"input": "hi"}).status_code == 200
        assert "/v1/toy/{number}" in http.get("/openapi.json").json()["paths"]


def test_a_factory_that_fails_ends_the_server_with_its_error():
    async def load() -> Service:
        raise WeightsError("no weights here")

    with pytest.raises(WeightsError, match="no weights here"):
        serve(create_app(load), bind("127.0.0.1", 0))


def test_a_parameter_that_is_called_like_a_field_is_an_error_at_launch():
    task = server_toys.TONE.task.model_copy(update={"params": "server_toys:ClashingParams"})
    recipe = server_toys.TONE.model_copy(update={"task": task})

    async def load() -> Service:
        return await Service.launch(configure([recipe]), toy_plugins())

    with pytest.raises(ConfigError, match="'speed' is already a field"):
        serve(create_app(load), bind("127.0.0.1", 0))


def test_a_parameter_may_have_an_alias(start):
    task = server_toys.TONE.task.model_copy(update={"params": "server_toys:AliasParams"})
    stages = (server_toys.StageSpec("words", "server_toys:AliasWords"), server_toys.TONE.stages[1])
    running = start(recipes=[server_toys.TONE.model_copy(update={"task": task, "stages": stages})])
    body = {"input": "hi", "response_format": "pcm"}
    with httpx.Client(base_url=running.url) as http:
        assert len(http.post(SPEECH, json=body | {"topK": 3}).content) == 3 * 4800
        assert len(http.post(SPEECH, json=body).content) == 5 * 4800
        refused = http.post(SPEECH, json=body | {"topK": 0})
        assert (refused.status_code, error(refused)["param"]) == (400, "topK")
        refused = http.post(SPEECH, json=body | {"top_k": 3})
        assert (refused.status_code, error(refused)["param"]) == (400, "top_k")


def stop(running: Running) -> None:
    assert running.loop is not None
    running.loop.call_soon_threadsafe(running.server.stop)


def test_draining_refuses_new_work_and_finishes_the_old(start):
    running = start(drain_seconds=10)
    with httpx.Client(base_url=running.url) as http:
        body = {"input": "FOREVER", "response_format": "pcm"}
        with httpx.stream("POST", running.url + SPEECH, json=body) as response:
            chunks = response.iter_raw()
            assert next(chunks)
            stop(running)
            assert eventually(lambda: http.get("/ready").status_code == 503)
            assert error(http.get("/ready"))["code"] == "draining"
            assert http.get("/health").json()["state"] == "draining"
            refused = http.post(SPEECH, json={"input": "hi"})
            assert refused.status_code == 503
            assert int(refused.headers["retry-after"]) >= 1
            assert sum(len(next(chunks)) for _ in range(3)) > 0
        running.thread.join(5)
        assert not running.thread.is_alive()


def test_draining_ends_after_its_limit(start):
    running = start(drain_seconds=0.3)
    body = {"input": "FOREVER", "response_format": "pcm"}
    with httpx.stream("POST", running.url + SPEECH, json=body) as response:
        stop(running)
        with pytest.raises(httpx.RemoteProtocolError):
            response.read()
    running.thread.join(5)
    assert not running.thread.is_alive()


HALF = {
    "form": (HEAR, "content-type: multipart/form-data; boundary=X", b"--X\r\n"),
    "JSON": (SPEECH, "content-type: application/json", b'{"input": "'),
    "a plugin's own": ("/v1/toy/size", "content-type: text/plain", b"half"),
}


@pytest.mark.parametrize("kind", HALF)
def test_draining_does_not_wait_for_bodies_that_are_still_on_their_way(start, kind, caplog):
    path, header, half = HALF[kind]
    core = path.startswith("/v1/audio")
    running = start(drain_seconds=20 if core else 0.2)
    client = Raw(running.port)
    client.head(path, header, "content-length: 1000")
    client.send(half)
    assert eventually(lambda: running.metric("omni_http_in_flight") == 2)
    stop(running)
    head, _, body = client.read().partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 503 ")
    assert json.loads(body)["error"]["code"] == "draining"
    running.thread.join(5)
    assert not running.thread.is_alive()
    assert not [record for record in caplog.records if record.exc_info]


@pytest.mark.parametrize("fmt", ["pcm", "wav"])
def test_a_client_that_reads_nothing_is_cut_off_without_a_traceback(start, fmt, caplog):
    running = start(drain_seconds=0.2)
    client = Raw(running.port)
    body = json.dumps({"input": "FLOOD", "response_format": fmt}).encode()
    client.head(SPEECH, "content-type: application/json", f"content-length: {len(body)}")
    client.send(body)
    made = "omni_stage_items_total"
    assert eventually(lambda: running.metric(made, stage="sound") > 100, 10)
    assert eventually(
        lambda: (before := running.metric(made)) and time.sleep(0.1) is None and running.metric(made) == before, 10
    )
    stop(running)
    running.thread.join(10)
    assert not running.thread.is_alive()
    assert not [record for record in caplog.records if record.exc_info]
    client.sock.close()


SCRIPT = """
import sys
sys.path.insert(0, sys.argv[1])
import server_harness, server_toys
from omni.config import configure
from omni.server.app import create_app
from omni.server.run import bind, serve
from omni.server.settings import ServerSettings
from omni.service import Service

async def load():
    return await Service.launch(configure(server_toys.RECIPES), server_harness.toy_plugins())

sock = bind("127.0.0.1", 0)
app = create_app(load, ServerSettings(drain_seconds=float(sys.argv[2])))
serve(app, sock, lambda: print(sock.getsockname()[1], flush=True))
print("closed", flush=True)
"""


@pytest.fixture
def process():
    """A server in a process of its own, to be signalled."""
    running: list[subprocess.Popen[str]] = []

    def begin(drain: float) -> tuple[subprocess.Popen[str], int]:
        toys = str(Path(__file__).parent / "toys")
        one = subprocess.Popen(
            [sys.executable, "-c", SCRIPT, toys, str(drain)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        running.append(one)
        assert one.stdout is not None
        return one, int(one.stdout.readline())

    yield begin
    for one in running:
        one.kill()
        one.communicate()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_lets_a_request_finish_and_exits_0(process, number):
    one, port = process(20)
    text = " ".join(["word"] * 100)
    body = {"input": text, "response_format": "pcm", "stream_format": "sse"}
    with httpx.stream("POST", f"http://127.0.0.1:{port}{SPEECH}", json=body, timeout=20) as response:
        lines = response.iter_lines()
        next(lines)
        one.send_signal(number)
        rest = [line for line in lines if line]
    assert json.loads(rest[-1][6:])["type"] == "speech.audio.done"
    out, err = one.communicate(timeout=20)
    assert one.returncode == 0, err
    assert out == "closed\n"
    assert "Traceback" not in err


def test_a_second_signal_does_not_wait(process):
    one, port = process(60)
    body = {"input": "FOREVER", "response_format": "pcm"}
    with httpx.stream("POST", f"http://127.0.0.1:{port}{SPEECH}", json=body) as response:
        chunks = response.iter_raw()
        next(chunks)
        one.send_signal(signal.SIGINT)
        assert eventually(lambda: httpx.get(f"http://127.0.0.1:{port}/ready").status_code == 503)
        one.send_signal(signal.SIGINT)
        one.communicate(timeout=10)
        chunks.close()
    assert one.returncode == 0
