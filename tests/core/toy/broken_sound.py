"""Toy vocoders with one fault each. The comment of a class says what its author got wrong."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from toy_tts import RATE, Frame, Sing, State

from omni import AudioChunk, BadRequest, DecodeJob, Decoder


class NewPhase(Sing):
    """The phase starts again with every chunk."""

    def chunks(self, job: DecodeJob) -> list[AudioChunk]:
        job.state.phase = 0.0
        return super().chunks(job)


class Overlap(Sing):
    """The last chunk is given twice if it is a short one."""

    def chunks(self, job: DecodeJob) -> list[AudioChunk]:
        chunks = super().chunks(job)
        return chunks * 2 if job.last and len(job.items) < 3 else chunks


class AllAtOnce(Sing):
    """Collects everything before it gives anything."""

    def chunks(self, job: DecodeJob) -> list[AudioChunk]:
        job.state.all = [*getattr(job.state, "all", []), *job.items]
        if not job.last:
            return []
        return super().chunks(DecodeJob(job.state, job.state.all, True))


class SharedBuffer(Sing):
    """One array for all that is handed out."""

    def load(self) -> None:
        self.buffer = np.zeros(RATE * 60, np.float32)

    def chunks(self, job: DecodeJob) -> list[AudioChunk]:
        chunks = super().chunks(job)
        for chunk in chunks:
            self.buffer[: len(chunk.samples)] = chunk.samples
            chunk.samples = self.buffer[: len(chunk.samples)]
        return chunks


class SharedState(Sing):
    """The state is the stage's, not the stream's."""

    def load(self) -> None:
        self.phase = 0.0

    def chunks(self, job: DecodeJob) -> list[AudioChunk]:
        job.state.phase = self.phase = self.phase if job.items else 0.0
        chunks = super().chunks(job)
        self.phase = 0.0 if job.last else job.state.phase
        return chunks


class DiscardAll(Sing):
    """One stream's end resets all."""

    def discard(self, state: State) -> None:
        for other in self.states:
            other.phase = 0.0
            other.held = other.held[:0]
        super().discard(state)


class PoisonAll(Decoder[Frame, AudioChunk]):
    """An error of one stream is raised for the whole batch."""

    Options = Sing.Options

    def load(self) -> None:
        self.sing = Sing(self.options, self.context)

    def open(self, first: Frame) -> State:
        return self.sing.open(first)

    def decode(self, batch: Sequence[DecodeJob]) -> list[list[AudioChunk]]:
        time.sleep(0.002)  # so that the streams meet
        if any(item.pitch == 0.75 for job in batch for item in job.items):
            raise BadRequest("no such pitch", param="pitch")
        return self.sing.decode(batch)


class Hoard(Sing):
    """Nothing is ever given back."""

    def discard(self, state: State) -> None:
        pass


class HoardNative(Sing):
    """Memory that only the operating system sees."""

    def load(self) -> None:
        self.blocks: list[Any] = []

    def open(self, first: Frame) -> State:
        import mmap

        block = mmap.mmap(-1, 1 << 21)
        block.write(b"x" * (1 << 21))
        self.blocks.append(block)
        return super().open(first)


class WrongRate(Sing):
    def chunks(self, job: DecodeJob) -> list[AudioChunk]:
        return [msgspec.structs.replace(chunk, sample_rate=16000) for chunk in super().chunks(job)]


class WrongDtype(Sing):
    def chunks(self, job: DecodeJob) -> list[AudioChunk]:
        return [msgspec.structs.replace(c, samples=c.samples.astype(np.float64)) for c in super().chunks(job)]


class Stereo(Sing):
    def chunks(self, job: DecodeJob) -> list[AudioChunk]:
        return [msgspec.structs.replace(c, samples=np.stack([c.samples] * 2, 1)) for c in super().chunks(job)]


class Loud(Sing):
    def chunks(self, job: DecodeJob) -> list[AudioChunk]:
        return [msgspec.structs.replace(c, samples=c.samples * 9) for c in super().chunks(job)]


class NotANumber(Sing):
    def chunks(self, job: DecodeJob) -> list[AudioChunk]:
        return [msgspec.structs.replace(c, samples=c.samples * np.float32("nan")) for c in super().chunks(job)]


class Silent(Sing):
    def chunks(self, job: DecodeJob) -> list[AudioChunk]:
        return [msgspec.structs.replace(c, samples=c.samples * 0) for c in super().chunks(job)]


class Spinner(Sing):
    """A thread that looks for work all the time."""

    def load(self) -> None:
        self.stop = False
        self.thread = threading.Thread(target=self.spin, daemon=True)
        self.thread.start()

    def spin(self) -> None:
        while not self.stop:
            pass

    def close(self) -> None:
        self.stop = True
        self.thread.join()


class LeftThread(Sing):
    """A thread that nobody ends, until the test does."""

    ends: threading.Event = threading.Event()

    def load(self) -> None:
        threading.Thread(target=self.ends.wait, name="left-behind", daemon=True).start()
