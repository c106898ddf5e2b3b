"""What a user without weights is told, and that the Hub's copy is fetched and served."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from fish_serving import CKPT

COMMIT = "0123456789abcdef0123456789abcdef01234567"
EXTRA = ("README.md", "overview.png")


_NAMES = [*EXTRA, *(file.name for file in CKPT.iterdir())]


def _content(name: str) -> bytes:
    return b"x" if name in EXTRA else (CKPT / name).read_bytes()


def _digest(name: str) -> str:
    return hashlib.sha1(_content(name)).hexdigest()


def _entry(name: str) -> dict[str, Any]:
    return {"type": "file", "path": name, "size": len(_content(name)), "oid": _digest(name)}


class Hub(ThreadingHTTPServer):
    """As much of the Hub as a download needs; ``gated``: it asks for a licence to be accepted."""

    def __init__(self, gated: bool) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.gated = gated
        self.fetched: list[str] = []
        self.url = f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: Hub

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if self.server.gated:
            self._answer(403, b"{}", {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access is restricted."})
        elif path.startswith("/api/models/fishaudio/s2-pro/tree/"):
            self._answer(200, json.dumps([_entry(name) for name in _NAMES]).encode())
        elif path.startswith("/api/models/fishaudio/s2-pro"):
            siblings = [{"rfilename": name} for name in _NAMES]
            info = {"id": "fishaudio/s2-pro", "sha": COMMIT, "siblings": siblings}
            self._answer(200, json.dumps(info).encode())
        elif path.startswith(f"/fishaudio/s2-pro/resolve/{COMMIT}/"):
            name = path.rpartition("/")[2]
            body = _content(name)
            if self.command == "GET":
                self.server.fetched.append(name)
            self._answer(200, body, {"ETag": f'"{_digest(name)}"', "X-Repo-Commit": COMMIT})
        else:
            self._answer(404, b"{}")

    def _answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture
def hub(request: pytest.FixtureRequest) -> Iterator[Hub]:
    with Hub(gated=request.param) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def omni(*args: str, home: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("OMNI_", "HF_"))}
    return subprocess.run(
        [sys.executable, "-m", "omni", *args],
        env=kept | {"HF_HOME": str(home), "OMP_NUM_THREADS": "1", "NO_PROXY": "*"} | variables,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


LAUNCH = ("launch", "--recipe", "fish-s2-pro", "--port", "0")
PULL = ("pull", "fish-s2-pro")
WHAT_TO_DO = (
    "fishaudio/s2-pro",
    "Fish Audio Research License",
    "non-commercial",
    "https://huggingface.co/fishaudio/s2-pro",
    "HF_TOKEN",
    "hf auth login",
    "fish-s2-pro-random",
)


def assert_says(ran: subprocess.CompletedProcess[str], *words: str) -> None:
    assert ran.returncode == 1
    assert "Traceback" not in ran.stderr
    message = ran.stderr[ran.stderr.index("error: ") :]
    for word in words:
        assert word in message, message


@pytest.mark.parametrize("command", [LAUNCH, PULL], ids=["launch", "pull"])
@pytest.mark.parametrize(
    "variables",
    [{"HF_HUB_OFFLINE": "1"}, {"HF_ENDPOINT": "http://127.0.0.1:9"}],
    ids=["told to be offline", "no connection"],
)
def test_without_a_network_it_says_what_to_do(tmp_path, command, variables) -> None:
    ran = omni(*command, home=tmp_path, **variables)
    assert_says(ran, *WHAT_TO_DO, "the Hub cannot be reached", "omni pull fish-s2-pro", "--weights DIR")


@pytest.mark.parametrize("hub", [True], indirect=True)
@pytest.mark.parametrize("command", [LAUNCH, PULL], ids=["launch", "pull"])
def test_without_access_it_says_what_to_do(tmp_path, hub, command) -> None:
    assert_says(omni(*command, home=tmp_path, HF_ENDPOINT=hub.url), *WHAT_TO_DO, "is gated", "accept its terms")


@pytest.mark.parametrize("hub", [False], indirect=True)
def test_the_hub_s_copy_is_fetched_once_and_found_offline(tmp_path, hub) -> None:
    ran = omni(*PULL, home=tmp_path, HF_ENDPOINT=hub.url)
    assert ran.returncode == 0, ran.stderr
    folder = Path(ran.stdout.strip())
    assert folder.name == COMMIT
    for file in CKPT.iterdir():
        assert (folder / file.name).read_bytes() == file.read_bytes()
    assert sorted(set(hub.fetched)) == sorted(file.name for file in CKPT.iterdir())
    # Its bar counts files.
    assert "100%" in ran.stderr
    again = omni(*PULL, home=tmp_path, HF_HUB_OFFLINE="1")
    assert again.stdout == ran.stdout


def test_a_folder_that_is_no_checkpoint_is_named(tmp_path) -> None:
    (tmp_path / "empty").mkdir()
    ran = omni(*LAUNCH, "--weights", str(tmp_path / "empty"), home=tmp_path)
    assert_says(ran, "empty")
    ran = omni(*LAUNCH, "--weights", str(tmp_path / "nowhere"), home=tmp_path)
    assert_says(ran, "nowhere", "no such folder")
