"""Multipart forms with one file: spooled to disk as they arrive, never whole in memory."""

from __future__ import annotations

import asyncio
import mmap
import tempfile
from types import TracebackType
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.types import Receive, Scope

from omni.errors import BadRequest, Unavailable
from omni.server.body import Intake, Share, declared_length, header, too_large
from omni.server.errors import shown
from omni.server.settings import MIB

IN_MEMORY = MIB
"""A file up to this size stays in memory; a larger one is written in pieces of it."""
MAX_PARTS = 64
MAX_FIELD = 64 * 1024
"""Bytes of one form field that is not the file."""
OVERHEAD = 256 * 1024 + MAX_FIELD
"""Bytes of a body that may go to anything but the file: all fields together, headers, boundaries."""


class Spool:
    """The bytes of a file while they arrive, then as an array without a copy."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._file: IO[bytes] | None = None
        self.size = 0

    @property
    def in_memory(self) -> int:
        return len(self._buffer)

    def add(self, data: bytes) -> None:
        self._buffer += data
        self.size += len(data)

    async def flush(self, share: Share) -> None:
        """Write to disk what is too much for memory; ``share`` is of the disk's budget.

        Raises:
            Busy: the disk space for uploads is used up.
            Unavailable: the disk is full.
        """
        if len(self._buffer) < IN_MEMORY:
            return
        data, self._buffer = self._buffer, bytearray()
        share.take(len(data))
        await asyncio.to_thread(self._write, data)

    def _write(self, data: bytearray) -> None:
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(prefix="omni-upload-", buffering=0)  # noqa: SIM115 - closed by close()
            view = memoryview(data)
            while view:
                view = view[self._file.write(view) :]
        except OSError as error:
            raise Unavailable(f"the upload cannot be stored: {error.strerror}", retry_after=60.0) from error

    async def array(self, share: Share) -> NDArray[np.uint8]:
        """All bytes, uint8; a large file is mapped from disk. Nothing may be added after."""
        if self._file is None:
            return np.frombuffer(self._buffer, np.uint8)
        if self._buffer:
            data, self._buffer = self._buffer, bytearray()
            share.take(len(data))
            await asyncio.to_thread(self._write, data)
        return np.frombuffer(mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)

    def close(self) -> None:
        """Remove the file; an array of it stays valid as long as it is used."""
        self._buffer = bytearray()
        if self._file is not None:
            self._file.close()


class Form:
    """A parsed form: its text fields in the order they came, and the file. ``memory`` and ``disk`` hold what it takes
    of both."""

    def __init__(self, memory: Share, disk: Share) -> None:
        self.fields: list[tuple[str, str]] = []
        self.file = Spool()
        self.has_file = False
        self._memory = memory
        self._disk = disk
        self._overhead = 0

    async def store(self, overhead: int) -> None:
        """Account for what has arrived, and write to disk what is too much for memory. ``overhead``: bytes of it that
        did not go to the file.

        Raises:
            Busy, Unavailable: there is no room for it.
        """
        self._overhead = overhead
        self._settle()
        await self.file.flush(self._disk)
        self._settle()

    async def audio(self) -> NDArray[np.uint8]:
        """The file, uint8. Nothing may be added after."""
        audio = await self.file.array(self._disk)
        self._settle()
        return audio

    def _settle(self) -> None:
        # A text may be four times as large as its bytes.
        self._memory.settle(self.file.in_memory + 4 * self._overhead)

    def __enter__(self) -> Form:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.file.close()


class FormReader:
    """Callbacks of the parser. The part called ``file`` is the file, whatever its headers say or lack."""

    def __init__(self, form: Form, max_file: int) -> None:
        self._form = form
        self._max_file = max_file
        self._parts = 0
        self._header_name = bytearray()
        self._header_value = bytearray()
        self._headers: dict[bytes, bytes] = {}
        self._name = ""
        self._field: bytearray | None = None
        self.complete = False

    def callbacks(self) -> dict[str, Any]:
        return {
            "on_part_begin": self._part_begin,
            "on_header_field": self._header_field,
            "on_header_value": self._header_value_data,
            "on_header_end": self._header_end,
            "on_headers_finished": self._headers_finished,
            "on_part_data": self._part_data,
            "on_part_end": self._part_end,
            "on_end": self._end,
        }

    def _part_begin(self) -> None:
        self._parts += 1
        if self._parts > MAX_PARTS:
            raise BadRequest(f"a form may have at most {MAX_PARTS} parts")
        self._headers = {}
        self._header_name.clear()
        self._header_value.clear()

    def _header_field(self, data: bytes, start: int, end: int) -> None:
        self._header_name += data[start:end]

    def _header_value_data(self, data: bytes, start: int, end: int) -> None:
        self._header_value += data[start:end]

    def _header_end(self) -> None:
        self._headers[bytes(self._header_name).lower()] = bytes(self._header_value)
        self._header_name.clear()
        self._header_value.clear()

    def _headers_finished(self) -> None:
        kind, options = parse_options_header(self._headers.get(b"content-disposition"))
        name = options.get(b"name")
        if kind != b"form-data" or not name:
            raise BadRequest("a part of the form has no 'Content-Disposition: form-data; name=…'")
        encoding = self._headers.get(b"content-transfer-encoding", b"binary").strip().lower()
        if encoding not in (b"binary", b"8bit", b"7bit"):
            raise BadRequest(f"Content-Transfer-Encoding {shown(encoding.decode('latin-1'))} is not taken; send bytes")
        self._name = _text(name, "a field's name")
        if self._name == "file":
            if self._form.has_file:
                raise BadRequest("the form has more than one 'file'", param="file")
            self._form.has_file = True
            self._field = None
        elif b"filename" in options:
            raise BadRequest(f"the part {shown(self._name)} is a file; only 'file' may be one", param=self._name[:100])
        else:
            self._field = bytearray()

    def _part_data(self, data: bytes, start: int, end: int) -> None:
        if self._field is None:
            self._form.file.add(data[start:end])
            if self._form.file.size > self._max_file:
                raise too_large(self._max_file, "a file", "file")
            return
        self._field += data[start:end]
        if len(self._field) > MAX_FIELD:
            raise BadRequest(
                f"the field {shown(self._name)} may have at most {MAX_FIELD} bytes", param=self._name[:100]
            )

    def _part_end(self) -> None:
        if self._field is not None:
            self._form.fields.append((self._name, _text(bytes(self._field), f"the field {shown(self._name)}")))

    def _end(self) -> None:
        self.complete = True


def _text(data: bytes, what: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise BadRequest(f"{what} is not valid UTF-8") from None


def boundary_of(scope: Scope) -> bytes | None:
    """The boundary of a multipart body; None when the body is of another type."""
    kind, options = parse_options_header(header(scope, b"content-type"))
    return options.get(b"boundary", b"") if kind == b"multipart/form-data" else None


async def read_form(form: Form, scope: Scope, receive: Receive, boundary: bytes, max_file: int, intake: Intake) -> None:
    """Fill ``form`` from the body, its parts in any order, with or without a Content-Length.

    Raises:
        BadRequest: malformed or incomplete multipart; a part that is too large or too many.
        TooLarge: the file, or the whole body, is over the limit; raised as soon as that shows.
        Busy, Unavailable, BodyTimeout, Cancelled: see :class:`Form` and :meth:`omni.server.body.Intake.chunks`.
    """
    limit = max_file + OVERHEAD
    if declared_length(scope) > limit:
        raise too_large(max_file, "a file", "file")
    if not boundary:
        raise BadRequest("the multipart body has no boundary in its Content-Type")
    reader = FormReader(form, max_file)
    received = 0
    try:
        parser = MultipartParser(boundary, reader.callbacks())  # type: ignore[arg-type]
        async for chunk in intake.chunks(receive):
            received += len(chunk)
            parser.write(chunk)
            overhead = received - form.file.size
            if overhead > OVERHEAD:
                raise BadRequest(f"all of a form but its file may have at most {OVERHEAD // 1024} KiB")
            await form.store(overhead)
    except FormParserError as error:
        raise BadRequest(f"the multipart body is malformed: {error}") from None
    if not reader.complete:
        raise BadRequest("the multipart body ends before its closing boundary")
