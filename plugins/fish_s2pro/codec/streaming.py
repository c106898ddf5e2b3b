"""Exact streaming: every stream keeps its state, so its samples equal those of the whole decode."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Sequence

import torch
from torch import Tensor

from fish_s2pro.codec.decoder import CodecDecoder
from fish_s2pro.codec.state import Step, StreamState


class StreamingDecoder:
    """Decodes frames of many streams as they come.

    A step takes streams of any age with any number of new frames; those with equally many share a batch. At most
    ``max_frames`` frames of a stream are worked on at once, at most ``max_batch`` streams. ``streams`` rows of
    state are there from the start; more are made when more streams open. Thread-safe; steps run one at a time.
    """

    def __init__(self, decoder: CodecDecoder, *, streams: int = 8, max_frames: int = 8, max_batch: int = 16) -> None:
        self._decoder = decoder
        self._max_frames = max_frames
        self._max_batch = max_batch
        self._state = StreamState(streams, max_frames, decoder.device, decoder.dtype)
        self._stepping = threading.Lock()
        self._rows = threading.Lock()
        self._free = list(range(streams - 1, -1, -1))
        self._known = streams
        self._seen: dict[int, int] = {}

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
    def step(self, jobs: Sequence[tuple[int, Tensor]]) -> list[Tensor]:
        """Decode new frames: per stream int64 codes ``(codebooks, frames)``, each stream at most once. Gives float32
        samples ``(frames * frame_samples,)`` on the CPU, in the same order."""
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

    def _prepare(self, jobs: Sequence[tuple[int, Tensor]]) -> None:
        if self._known > self._state.rows:
            self._state.grow(max(self._known, 2 * self._state.rows))
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
