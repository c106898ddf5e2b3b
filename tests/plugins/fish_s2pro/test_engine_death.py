"""An engine that cannot go on: every request is answered, and the server no longer says that it is ready."""

from __future__ import annotations

import fish_serving
import httpx

SPEECH = {"input": "Hello there.", "top_k": 1, "max_new_tokens": 4, "response_format": "pcm"}


def test_a_dead_engine_is_no_ready_server(monkeypatch) -> None:
    running = fish_serving.Running()
    try:
        with httpx.Client(base_url=running.url, timeout=60) as http:
            assert http.post("/v1/audio/speech", json=SPEECH).status_code == 200
            assert http.get("/ready").status_code == 200
            engine = running.pipeline.schedulers["ar"]._engine

            def lost(*_: object) -> None:
                raise RuntimeError("device lost")

            monkeypatch.setattr(engine, "_survive", lost)
            monkeypatch.setattr(engine._runner, "decode", lost)
            assert http.post("/v1/audio/speech", json=SPEECH).status_code == 500
            later = http.post("/v1/audio/speech", json=SPEECH)
            assert later.status_code == 503
            assert "device lost" in later.json()["error"]["message"]
            ready = http.get("/ready")
            assert ready.status_code == 503
            assert "stage 'ar' of 'fish-s2-pro'" in ready.json()["error"]["message"]
            assert "omni_ready 0.0" in http.get("/metrics").text
            assert http.get("/health").status_code == 200, "the process lives"
    finally:
        running.stop()
