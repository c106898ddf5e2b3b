"""Requests to an app without a socket behave like requests over one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import httpx
import pytest

from omni.cli.inproc import AppTransport


def client(app) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=AppTransport(app), base_url="http://omni")


def run(work: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(10):
            await work()

    asyncio.run(bounded())


async def read(receive) -> bytes:
    body = b""
    while (event := await receive())["type"] == "http.request":
        body += event["body"]
        if not event["more_body"]:
            break
    return body


def test_request_and_answer_arrive_whole() -> None:
    async def app(scope, receive, send) -> None:
        body = await read(receive)
        head = f"{scope['method']} {scope['path']}?{scope['query_string'].decode()} ".encode()
        names = [name for name, _ in scope["headers"]]
        assert b"content-type" in names
        await send({"type": "http.response.start", "status": 201, "headers": [(b"x-a", b"b")]})
        await send({"type": "http.response.body", "body": head, "more_body": True})
        await send({"type": "http.response.body", "body": body, "more_body": False})

    async def work() -> None:
        async with client(app) as http:
            answer = await http.post("/p/q?x=1", json={"k": 1})
            assert answer.status_code == 201
            assert answer.headers["x-a"] == "b"
            assert answer.content == b'POST /p/q?x=1 {"k":1}'

    run(work)


def test_body_is_read_while_the_app_still_writes() -> None:
    async def work() -> None:
        go_on = asyncio.Event()

        async def app(scope, receive, send) -> None:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"first", "more_body": True})
            await go_on.wait()
            await send({"type": "http.response.body", "body": b"last"})

        async with client(app) as http, http.stream("GET", "/") as answer:
            parts = answer.aiter_bytes()
            assert await anext(parts) == b"first"
            go_on.set()
            assert await anext(parts) == b"last"

    run(work)


def test_leaving_early_ends_the_app() -> None:
    async def work() -> None:
        ended = asyncio.Event()

        async def app(scope, receive, send) -> None:
            try:
                await send({"type": "http.response.start", "status": 200, "headers": []})
                while True:
                    await send({"type": "http.response.body", "body": b"x", "more_body": True})
            finally:
                ended.set()

        async with client(app) as http, http.stream("GET", "/") as answer:
            assert await anext(answer.aiter_bytes())
        assert ended.is_set()

    run(work)


def test_app_finishes_after_its_answer() -> None:
    async def work() -> None:
        ended = []

        async def app(scope, receive, send) -> None:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"all"})
            await asyncio.sleep(0.01)
            ended.append(True)

        async with client(app) as http:
            assert (await http.get("/")).content == b"all"
        assert ended

    run(work)


def test_answer_that_breaks_off_is_an_error() -> None:
    async def app(scope, receive, send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"half", "more_body": True})

    async def work() -> None:
        async with client(app) as http:
            with pytest.raises(httpx.RemoteProtocolError, match="broke off"):
                await http.get("/")

    run(work)


def test_error_of_the_app_is_raised() -> None:
    async def app(scope, receive, send) -> None:
        raise ValueError("inside")

    async def work() -> None:
        async with client(app) as http:
            with pytest.raises(ValueError, match="inside"):
                await http.get("/")

    run(work)
