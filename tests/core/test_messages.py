"""Messages and their arrays across a process boundary."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from omni.messages import (
    AudioChunk,
    Message,
    ReferenceAudio,
    Segment,
    SpeechRequest,
    TranscriptChunk,
    TranscriptionRequest,
    Usage,
    Word,
    decode,
    encode,
)


class Box(Message):
    content: Any


class Exact(Message):
    samples: npt.NDArray[np.int16]


class Nested(Message):
    inner: Box
    arrays: list[np.ndarray]
    by_name: dict[str, np.ndarray]


def across(message: Any) -> Any:
    header, buffers = encode(message)
    return decode(type(message), header, [bytes(buffer) for buffer in buffers])


DTYPES = ["bool", "int8", "uint8", "int16", "int64", "float16", "float32", "float64", "complex64", ">f4", "<U3", "S4"]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (5,), (2, 3), (0, 3), (2, 1, 4)])
def test_arrays_keep_dtype_shape_and_content(dtype: str, shape: tuple[int, ...]) -> None:
    array = np.random.default_rng(0).integers(0, 100, shape).astype(dtype)
    got = across(Box(content=array)).content
    assert (got.dtype, got.shape) == (np.dtype(dtype), shape)
    assert np.array_equal(got, array)
    assert got.size == 0 or not got.flags.writeable


@pytest.mark.parametrize("view", ["reversed", "strided", "transposed", "broadcast", "fortran"])
def test_arrays_that_are_not_contiguous(view: str) -> None:
    base = np.arange(24, dtype=np.int32).reshape(4, 6)
    array = {
        "reversed": base[::-1],
        "strided": base[:, ::2],
        "transposed": base.T,
        "broadcast": np.broadcast_to(base[0], (3, 6)),
        "fortran": np.asfortranarray(base),
    }[view]
    assert np.array_equal(across(Box(content=array)).content, array)


def test_the_content_of_arrays_is_not_copied() -> None:
    array = np.zeros(1000, np.float32)
    header, (buffer,) = encode(Box(content=array))
    assert len(header) < 60
    assert np.shares_memory(np.frombuffer(buffer, np.float32), array)
    got = decode(Box, header, [buffer]).content
    assert np.shares_memory(got, array)


def test_arrays_anywhere_in_a_message() -> None:
    arrays = [np.arange(n) for n in range(3)]
    sent = Nested(inner=Box(content=[arrays[0], {"a": arrays[1]}]), arrays=arrays, by_name={"x": arrays[2]})
    got = across(sent)
    assert isinstance(got.inner, Box)
    assert np.array_equal(got.inner.content[0], arrays[0])
    assert np.array_equal(got.inner.content[1]["a"], arrays[1])
    assert [a.tolist() for a in got.arrays] == [a.tolist() for a in arrays]
    assert np.array_equal(got.by_name["x"], arrays[2])


@pytest.mark.parametrize(
    "content",
    [
        np.array([object()]),
        np.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f8")]),
        np.ma.array([1, 2], mask=[False, True]),
        np.float32(1),
        object(),
        len,
    ],
    ids=["objects", "records", "masked", "scalar", "object", "function"],
)
def test_what_would_change_on_the_way_is_refused(content: Any) -> None:
    with pytest.raises(NotImplementedError, match="cannot travel between stages"):
        encode(Box(content=content))


def test_core_messages() -> None:
    reference = ReferenceAudio(audio=np.frombuffer(b"RIFF", np.uint8), text="hello")
    speech = SpeechRequest(text="Grüße", voice="a", seed=2**63 - 1, references=[reference], params={"top_p": 0.5})
    got = across(speech)
    assert msgspec.structs.replace(got, references=[]) == msgspec.structs.replace(speech, references=[])
    assert bytes(got.references[0].audio) == b"RIFF"
    assert across(AudioChunk(samples=np.zeros(0, np.float32), sample_rate=24000, usage=Usage(3, 4))).usage == Usage(
        3, 4
    )
    segment = Segment(start=0.5, end=1.0, text=" a", words=[Word("a", 0.5, 1.0, 0.9)], tokens=[1, 2])
    chunk = TranscriptChunk(text=" a", segments=[segment], language="en", duration=1.5)
    assert across(chunk) == chunk
    request = TranscriptionRequest(audio=np.zeros(3, np.uint8), timestamps=["word"])
    assert across(request).timestamps == ["word"]


plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=20,
)


@given(plain)
def test_plain_values_come_back_equal(content: Any) -> None:
    assert across(Box(content=content)).content == content


def test_another_type_is_refused() -> None:
    header, buffers = encode(AudioChunk(samples=np.zeros(1, np.float32), sample_rate=8000))
    with pytest.raises(msgspec.ValidationError):
        decode(Box, header, list(buffers))
    header, buffers = encode(Box(content=1))
    with pytest.raises(msgspec.ValidationError):
        decode(AudioChunk, header, list(buffers))


def test_a_field_of_another_type_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError):
        across(AudioChunk(samples="loud", sample_rate=8000))  # type: ignore[arg-type]
    torch = pytest.importorskip("torch")
    with pytest.raises(msgspec.ValidationError, match="got Tensor"):
        across(AudioChunk(samples=torch.zeros(3), sample_rate=8000))  # type: ignore[arg-type]


def test_arrays_may_be_declared_with_their_element_type() -> None:
    assert across(Exact(samples=np.arange(3, dtype=np.int16))).samples.tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    "ref",
    [(1, "n", "<f4", [2]), (0, "n", "<f4", [3]), (0, "n", "O", [1]), (0, "n", "what", [2]), (0, "t", "load", [2])],
    ids=["no such buffer", "too short", "objects", "no dtype", "no torch dtype"],
)
def test_a_reference_that_does_not_fit_is_refused(ref: tuple[int, str, str, list[int]]) -> None:
    if ref[1] == "t":
        pytest.importorskip("torch")
    extension = msgspec.msgpack.Ext(1, msgspec.msgpack.encode(ref))
    header = msgspec.msgpack.encode({"content": extension})
    with pytest.raises(msgspec.ValidationError):
        decode(Box, header, [bytes(8)])


def test_unknown_extensions_are_refused() -> None:
    header = msgspec.msgpack.encode({"content": msgspec.msgpack.Ext(9, b"")})
    with pytest.raises(msgspec.ValidationError, match="unknown extension"):
        decode(Box, header, [])


TENSORS = ["bool", "uint8", "int32", "int64", "float16", "bfloat16", "float32", "float64", "complex64"]


@pytest.mark.parametrize("dtype", TENSORS)
@pytest.mark.parametrize("shape", [(), (0, 3), (2, 3)])
def test_tensors_keep_dtype_shape_and_content(dtype: str, shape: tuple[int, ...]) -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.randint(0, 2, shape).to(getattr(torch, dtype))
    got = across(Box(content=tensor)).content
    assert (got.dtype, got.shape) == (tensor.dtype, tensor.shape)
    assert torch.equal(got, tensor)


def test_tensors_that_are_views_or_need_gradients() -> None:
    torch = pytest.importorskip("torch")
    base = torch.arange(12.0).reshape(3, 4)
    assert torch.equal(across(Box(content=base.T[::2])).content, base.T[::2])
    leaf = torch.ones(3, requires_grad=True)
    got = across(Box(content=leaf)).content
    assert torch.equal(got, leaf.detach())
    assert not got.requires_grad
