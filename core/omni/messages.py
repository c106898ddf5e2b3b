"""What travels between stages, and how it crosses a process boundary.

A message is a :class:`msgspec.Struct`. Arrays inside it (``numpy.ndarray``, ``torch.Tensor``) leave the
header as references and travel beside it, so a transport can move them without a copy:
:func:`encode` gives ``(header, buffers)``, :func:`decode` is its inverse.
"""

from __future__ import annotations

import sys
from typing import Any, TypeVar, get_origin

import msgspec
import numpy as np

M = TypeVar("M", bound="Message")

_BUFFER = 1  # msgpack extension code of a buffer reference


class Message(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Base of everything a stage takes or gives. Subclass it with typed fields: plain values, lists, dictionaries,
    structs, ``numpy.ndarray`` and ``torch.Tensor`` (which arrives on the CPU)."""


class Joined(Message):
    """Input of a stage that comes after several others and is no aggregator: the i-th item of each, by the name of the
    stage it comes from."""

    parts: dict[str, Any]


class Usage(msgspec.Struct, frozen=True):
    """Tokens that one message accounts for; the server adds them up over a request."""

    input_tokens: int = 0
    output_tokens: int = 0


class ReferenceAudio(Message):
    """A voice to clone: encoded file bytes (uint8) and what is said in it."""

    audio: np.ndarray
    text: str = ""


class SpeechRequest(Message):
    """Input of a recipe whose task is :class:`omni.Speech`.

    ``text`` is NFC-normalised and not empty. ``speed`` is 1.0 unless the recipe declares a native range
    (core stretches time otherwise). ``params`` are the fields of the recipe's parameter model that the
    client set, validated; build the model from them.
    """

    text: str
    voice: str = ""
    language: str | None = None
    instructions: str | None = None
    speed: float = 1.0
    seed: int | None = None
    references: list[ReferenceAudio] = msgspec.field(default_factory=list)
    params: dict[str, Any] = msgspec.field(default_factory=dict)


class AudioChunk(Message):
    """A piece of the waveform: float32, shape ``(samples,)`` or ``(samples, channels)``, in [-1, 1]."""

    samples: np.ndarray
    sample_rate: int
    usage: Usage | None = None
    finish_reason: str | None = None


class TranscriptionRequest(Message):
    """Input of a recipe whose task is :class:`omni.Transcription`.

    ``audio`` holds the bytes of the uploaded file (uint8), still encoded. ``timestamps`` holds any of
    ``"segment"`` and ``"word"``. ``language`` is an ISO 639-1 code or None for detection.
    """

    audio: np.ndarray
    language: str | None = None
    prompt: str | None = None
    temperature: float | None = None
    seed: int | None = None
    timestamps: list[str] = msgspec.field(default_factory=list)
    params: dict[str, Any] = msgspec.field(default_factory=dict)


class Word(msgspec.Struct, frozen=True):
    """One word; seconds from the start of the file."""

    word: str
    start: float
    end: float
    probability: float | None = None


class Segment(msgspec.Struct, kw_only=True):
    """A stretch of speech with times in seconds from the start of the file, and the decoder's
    statistics where the model has them."""

    start: float
    end: float
    text: str
    words: list[Word] = msgspec.field(default_factory=list)
    tokens: list[int] = msgspec.field(default_factory=list)
    temperature: float = 0.0
    avg_logprob: float | None = None
    compression_ratio: float | None = None
    no_speech_prob: float | None = None


class TranscriptChunk(Message):
    """Output of a transcription recipe. The ``text`` of all chunks, joined as it is, is the transcript;
    ``segments`` are complete ones. ``duration`` (seconds of the file) may come with any chunk. ``finish_reason`` comes
    with the last text: ``length`` where a limit cut the text of any part of the file, else ``stop``."""

    text: str = ""
    segments: list[Segment] = msgspec.field(default_factory=list)
    language: str | None = None
    duration: float | None = None
    usage: Usage | None = None
    finish_reason: str | None = None


def _is_tensor(obj: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(obj, torch.Tensor)


class _Pack:
    def __init__(self) -> None:
        self.buffers: list[memoryview] = []

    def __call__(self, obj: Any) -> Any:
        if isinstance(obj, np.ndarray):
            if obj.dtype.hasobject or obj.dtype.names is not None or isinstance(obj, np.ma.MaskedArray):
                raise NotImplementedError("arrays of objects or records and masked arrays cannot travel between stages")
            kind, array = "n", np.ascontiguousarray(obj)
            dtype = array.dtype.str
        elif _is_tensor(obj):
            # bfloat16 has no numpy dtype: the bytes travel as uint8.
            import torch

            tensor = obj.detach().cpu().contiguous()
            kind, dtype = "t", str(tensor.dtype).removeprefix("torch.")
            array = tensor.reshape(-1).view(torch.uint8).numpy()
        else:
            raise NotImplementedError(f"{type(obj).__name__} cannot travel between stages")
        ref = (len(self.buffers), kind, dtype, list(obj.shape))
        self.buffers.append(array.reshape(-1).view(np.uint8).data)
        return msgspec.msgpack.Ext(_BUFFER, msgspec.msgpack.encode(ref))


def _unpack(buffers: list[Any]) -> Any:
    def ext_hook(code: int, data: memoryview) -> Any:
        if code != _BUFFER:
            raise msgspec.ValidationError(f"unknown extension {code}")
        index, kind, dtype, shape = msgspec.msgpack.decode(data, type=tuple[int, str, str, list[int]])
        try:
            return _array(kind, dtype, shape, buffers[index])
        except (AttributeError, IndexError, TypeError, ValueError, RuntimeError) as error:
            raise msgspec.ValidationError(f"{dtype} {shape} does not fit buffer {index}: {error}") from error

    return ext_hook


def _array(kind: str, dtype: str, shape: list[int], buffer: Any) -> Any:
    raw = np.frombuffer(buffer, np.uint8)
    if kind == "n":
        return raw.view(np.dtype(dtype)).reshape(shape)
    import torch

    kept = getattr(torch, dtype)
    return torch.from_numpy(raw.copy()).view(kept).reshape(shape) if len(raw) else torch.empty(shape, dtype=kept)


def _accept_array(expected: Any, obj: Any) -> Any:
    if isinstance(obj, get_origin(expected) or expected):
        return obj
    raise ValueError(f"expected {expected}, got {type(obj).__name__}")


def encode(message: Message) -> tuple[bytes, list[memoryview]]:
    """``(header, buffers)``: msgpack with references in place of arrays, and the arrays' bytes."""
    pack = _Pack()
    header = msgspec.msgpack.encode(message, enc_hook=pack)
    return header, pack.buffers


def decode(cls: type[M], header: bytes, buffers: list[Any]) -> M:
    """Inverse of :func:`encode`; numpy arrays are read-only views of ``buffers``.

    Raises:
        msgspec.ValidationError: the header does not describe a ``cls``.
    """
    return msgspec.msgpack.decode(header, type=cls, ext_hook=_unpack(buffers), dec_hook=_accept_array)
