"""Exact streaming: every stream keeps its state, so its samples equal those of the whole decode."""

from __future__ import annotations

import threading
from collections import OrderedDict, defaultdict
from collections.abc import Hashable, Mapping, Sequence
from hashlib import blake2b
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from omni.codecs.state import Step, StreamState


class FrameDecoder(Protocol):
    """A decoder that takes frames as they come. All of its methods run in inference mode."""

    device: torch.device
    dtype: torch.dtype

    def advance(self, codes: Tensor, step: Step) -> Tensor:
        """The next frames of the step's streams: int64 ``(batch, codebooks, frames)`` to float32 ``(batch, samples)``,
        equally many for every frame."""

    def reserve(self, frames: int) -> None:
        """Prepare for streams of so many frames."""


@runtime_checkable
class SkippingDecoder(FrameDecoder, Protocol):
    """A decoder that has a shorter way through frames that nobody hears."""

    def skip(self, codes: Tensor, step: Step, following: int) -> None:
        """As :meth:`advance` for frames that nobody hears; ``following`` more of them come after these. What cannot be
        heard in the frames after those need not be computed."""


class _Voices:
    """What streams start from after frames that nobody hears, by the content of the frames; the least recently used
    go when there are more than ``limit`` bytes."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._size = 0
        self._kept: OrderedDict[bytes, Mapping[Hashable, Tensor]] = OrderedDict()

    def find(self, key: bytes) -> Mapping[Hashable, Tensor] | None:
        found = self._kept.get(key)
        if found is not None:
            self._kept.move_to_end(key)
        return found

    def keep(self, key: bytes, state: Mapping[Hashable, Tensor]) -> None:
        size = _bytes_of(state)
        if size > self._limit:
            return
        self._kept[key] = state
        self._size += size
        while self._size > self._limit:
            _, oldest = self._kept.popitem(last=False)
            self._size -= _bytes_of(oldest)


def _bytes_of(state: Mapping[Hashable, Tensor]) -> int:
    return sum(tensor.nbytes for tensor in state.values())


class StreamingDecoder:
    """Decodes frames of many streams as they come.

    A step takes streams of any age with any number of new frames; those with equally many share a batch. At most
    ``max_frames`` frames of a stream are worked on at once, at most ``max_batch`` streams. ``streams`` rows of
    state are there from the start; more are made when more streams open. Up to ``kept_bytes`` of state are kept of
    streams that started from frames which nobody hears (see :meth:`restart`). Thread-safe; steps run one at a time.
    """

    def __init__(
        self,
        decoder: FrameDecoder,
        *,
        streams: int = 8,
        max_frames: int = 8,
        max_batch: int = 16,
        kept_bytes: int = 0,
    ) -> None:
        self._decoder = decoder
        self._max_frames = max_frames
        self._max_batch = max_batch
        self._state = StreamState(streams, max_frames, decoder.device, decoder.dtype)
        self._stepping = threading.Lock()
        self._rows = threading.Lock()
        self._free = list(range(streams - 1, -1, -1))
        self._known = streams
        self._seen: dict[int, int] = {}
        self._voices = _Voices(kept_bytes)

    @property
    def open_streams(self) -> int:
        return len(self._seen)

    @property
    def bytes_per_stream(self) -> int:
        """Bytes of state per stream; known after the first step."""
        return self._state.bytes_per_row

    def open(self) -> int:
        """A new stream; cheap, never waits for a step."""
        with self._rows:
            if not self._free:
                self._free.append(self._known)
                self._known += 1
            row = self._free.pop()
            self._seen[row] = 0
            return row

    def close(self, stream: int) -> None:
        """Give a stream's place back."""
        with self._rows:
            del self._seen[stream]
            self._free.append(stream)

    @torch.inference_mode()
    def restart(self, stream: int, silent: Tensor) -> None:
        """Let a stream begin anew, as if the frames ``silent`` int64 ``(codebooks, frames)``, may be none, had been
        decoded just now and nobody had heard them."""
        frames = silent.shape[1]
        with self._stepping:
            self._make_rows()
            self._seen[stream] = 0
            if not frames:
                return
            key = blake2b(silent.contiguous().numpy().data, digest_size=16).digest()
            saved = self._voices.find(key)
            if saved is not None:
                self._state.restore(stream, saved)
            else:
                self._skip(stream, silent)
                self._voices.keep(key, self._state.copy_of(stream))
            self._seen[stream] = frames

    def _skip(self, stream: int, silent: Tensor) -> None:
        self._state.clear(stream)
        frames = silent.shape[1]
        self._decoder.reserve(frames)
        for first in range(0, frames, self._max_frames):
            codes = silent[None, :, first : first + self._max_frames].to(self._decoder.device)
            step = Step(self._state, [stream], [first])
            if isinstance(self._decoder, SkippingDecoder):
                self._decoder.skip(codes, step, frames - first - codes.shape[2])
            else:
                self._decoder.advance(codes, step)

    @torch.inference_mode()
    def step(self, jobs: Sequence[tuple[int, Tensor]]) -> list[Tensor]:
        """Decode new frames: per stream int64 codes ``(codebooks, frames)``, each stream at most once. Gives float32
        samples on the CPU, in the same order."""
        with self._stepping:
            self._prepare(jobs)
            pieces: list[list[Tensor]] = [[] for _ in jobs]
            done = 0
            while groups := self._groups(jobs, done):
                for members in groups:
                    for member, samples in zip(members, self._run(jobs, members, done), strict=True):
                        pieces[member].append(samples)
                done += self._max_frames
            return [torch.cat(piece) if piece else torch.zeros(0) for piece in pieces]

    def _make_rows(self) -> None:
        if self._known > self._state.rows:
            self._state.grow(max(self._known, 2 * self._state.rows))

    def _prepare(self, jobs: Sequence[tuple[int, Tensor]]) -> None:
        self._make_rows()
        for stream, codes in jobs:
            if not self._seen[stream]:
                self._state.clear(stream)
            self._decoder.reserve(self._seen[stream] + codes.shape[1])

    def _groups(self, jobs: Sequence[tuple[int, Tensor]], done: int) -> list[list[int]]:
        """Places of the jobs that still have frames after the first ``done``, by how many they decode next."""
        by_length: defaultdict[int, list[int]] = defaultdict(list)
        for place, (_, codes) in enumerate(jobs):
            length = min(codes.shape[1] - done, self._max_frames)
            if length > 0:
                by_length[length].append(place)
        size = self._max_batch
        return [places[first : first + size] for places in by_length.values() for first in range(0, len(places), size)]

    def _run(self, jobs: Sequence[tuple[int, Tensor]], members: list[int], done: int) -> Tensor:
        rows = [jobs[member][0] for member in members]
        codes = torch.stack([jobs[member][1][:, done : done + self._max_frames] for member in members])
        step = Step(self._state, rows, [self._seen[row] for row in rows])
        samples = self._decoder.advance(codes.to(self._decoder.device), step)
        for row in rows:
            self._seen[row] += codes.shape[2]
        return samples.cpu()


@torch.inference_mode()
def decode_whole(decoder: FrameDecoder, codes: Tensor, chunk: int = 16) -> Tensor:
    """Whole streams at once: int64 ``(batch, codebooks, frames)`` to float32 ``(batch, samples)``. ``chunk`` frames are
    worked on at a time: activations stay near the caches, memory stays bounded.

    Streams of unequal length may be filled up with any code at the end: a sample depends on no later frame.
    """
    batch, _, frames = codes.shape
    decoder.reserve(frames)
    state = StreamState(batch, min(frames, chunk), decoder.device, decoder.dtype)
    rows = range(batch)
    pieces = [
        decoder.advance(codes[..., first : first + chunk].to(decoder.device), Step(state, rows, [first] * batch))
        for first in range(0, frames, chunk)
    ]
    return torch.cat(pieces, dim=1)
