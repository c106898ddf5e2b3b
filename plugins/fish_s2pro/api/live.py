"""WS /v1/tts/live: text comes in pieces, sound leaves while more text is written."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

import msgspec
from fastapi import WebSocket, WebSocketDisconnect

from fish_s2pro.api.tts import Speaking, core_fields
from fish_s2pro.prompts import split_sentences
from omni import BadRequest
from omni.endpoints import Speaker, decode_msgpack, reported

MAX_CHARACTERS = 100_000
"""Of one session's text."""
MAX_PAUSE = 300.0
"""Seconds without an event of the client, or in which it takes nothing."""


class Text:
    """What a client has written and what of it can be spoken."""

    def __init__(self, chunk_length: int | None) -> None:
        """``chunk_length``: bytes from which complete sentences are spoken without being asked for; None: never."""
        self._chunk_length = chunk_length
        self._written = ""
        self._characters = 0
        self._ready: list[str] = []
        self._ended = False
        self._changed = asyncio.Event()

    def add(self, text: str) -> None:
        """Raises BadRequest when the session's text is too long."""
        self._characters += len(text)
        if self._characters > MAX_CHARACTERS:
            raise BadRequest(f"a session speaks at most {MAX_CHARACTERS} characters", param="text")
        self._written += text
        if self._chunk_length is not None and len(self._written.encode()) > self._chunk_length:
            *complete, _ = split_sentences(self._written, self._chunk_length)
            for piece in complete:
                end = self._written.index(piece) + len(piece)
                self._written = self._written[end:]
                self._give(piece)

    def flush(self) -> None:
        written, self._written = self._written, ""
        self._give(written)

    def end(self) -> None:
        self.flush()
        self._ended = True
        self._changed.set()

    def _give(self, piece: str) -> None:
        if piece := piece.strip():
            self._ready.append(piece)
            self._changed.set()

    async def next(self) -> str | None:
        """The next piece to speak; None after the last one."""
        while not self._ready:
            if self._ended:
                return None
            self._changed.clear()
            await self._changed.wait()
        return self._ready.pop(0)


async def live(socket: WebSocket, speaking: Speaking) -> None:
    """One session: ``start`` with a request's fields, then ``text`` and ``flush``, in the end ``stop``."""
    await socket.accept()
    try:
        await _session(socket, speaking)
    except WebSocketDisconnect:
        return
    except Exception as error:  # noqa: BLE001 - becomes the session's last event
        known = reported(error, socket)
        await _send(socket, {"event": "finish", "reason": "error", "status": known.status, "message": known.message})
        await socket.close(1008 if known.status < 500 else 1011)
        return
    await _send(socket, {"event": "finish", "reason": "stop"})
    await socket.close()


async def _session(socket: WebSocket, speaking: Speaking) -> None:
    start = await _receive(socket)
    request = start.get("request")
    if start["event"] != "start" or not isinstance(request, dict):
        raise BadRequest("a session begins with a 'start' event and a 'request' in it", param="event")
    fields, _ = core_fields(request)
    fields["model"], _ = speaking.model(socket.headers.get("model"))
    # Without a reference every piece would get another voice: then only what the client says belongs together is one.
    text = Text(fields["chunk_length"] if fields["references"] else None)
    text.add(fields.pop("input"))
    with Speaker(socket, fields) as speaker:
        try:
            async with asyncio.TaskGroup() as tasks:
                listener = tasks.create_task(_listen(socket, text))
                await _speak(socket, speaker, text)
                listener.cancel()
        except ExceptionGroup as group:
            # Either side ends the other; the first error is the one that counts.
            raise group.exceptions[0] from None
        if tail := await speaker.finish():
            await _send(socket, {"event": "audio", "audio": tail})


async def _speak(socket: WebSocket, speaker: Speaker, text: Text) -> None:
    while (piece := await text.next()) is not None:
        async with aclosing(speaker.say(piece)) as sound:
            async for data in sound:
                await _send(socket, {"event": "audio", "audio": data})


async def _listen(socket: WebSocket, text: Text) -> None:
    while True:
        event = await _receive(socket)
        match event["event"]:
            case "text":
                if not isinstance(event.get("text"), str):
                    raise BadRequest("a 'text' event must hold a string 'text'", param="text")
                text.add(event["text"])
            case "flush":
                text.flush()
            case "stop":
                text.end()
                break
            case other:
                raise BadRequest(
                    f"the event {str(other)[:60]!r} is unknown; events are text, flush, stop", param="event"
                )
    while True:  # what it may still say is that it goes
        await socket.receive_bytes()


async def _receive(socket: WebSocket) -> dict[str, Any]:
    try:
        async with asyncio.timeout(MAX_PAUSE):
            message = await socket.receive()
    except TimeoutError:
        raise BadRequest(f"no event came for {MAX_PAUSE:g} s", code="session_timeout") from None
    if message["type"] == "websocket.disconnect":
        raise WebSocketDisconnect(message.get("code", 1005))
    if (data := message.get("bytes")) is None:
        raise BadRequest("events are msgpack in binary messages", code="invalid_msgpack")
    event = decode_msgpack(data)
    if not isinstance(event.get("event"), str):
        raise BadRequest("a message must be a map with an 'event'", param="event")
    return event


async def _send(socket: WebSocket, event: dict[str, Any]) -> None:
    async with asyncio.timeout(MAX_PAUSE):
        await socket.send_bytes(msgspec.msgpack.encode(event))
