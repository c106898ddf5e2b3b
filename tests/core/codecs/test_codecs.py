"""Causal layers in pieces give what torch's own give on the whole signal."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from safetensors.torch import save_file  # noqa: E402

from omni.codecs import (  # noqa: E402
    CausalConv,
    CheckpointWeights,
    RandomWeights,
    Rotations,
    ShapeRecorder,
    Step,
    StreamState,
    UpsampleConv,
    WindowView,
    device_of,
    interleaved,
)
from omni.engines.torch import Checkpoint  # noqa: E402
from omni.errors import ConfigError, WeightsError  # noqa: E402

CPU = torch.device("cpu")
EXACT = {"atol": 1e-4, "rtol": 1e-5}


def noise(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def in_pieces(
    call: Callable[[torch.Tensor, Step], torch.Tensor], x: torch.Tensor, frames: Sequence[int], rate: int
) -> torch.Tensor:
    """``x`` ``(rows, channels, time)`` in steps of so many frames, ``rate`` columns each; the rows are not neighbours,
    and other rows work in between."""
    rows = [2, 0]
    state = StreamState(3, max(frames), CPU, torch.float32)
    pieces, done = [], 0
    for count in frames:
        part = x[..., done * rate : (done + count) * rate]
        pieces.append(call(part, Step(state, rows, [done, done])))
        call(noise(1, *part.shape[1:], seed=done), Step(state, [1], [done]))
        done += count
    assert done * rate == x.shape[-1]
    return torch.cat(pieces, -1)


@pytest.mark.parametrize("columns", [1, 1000], ids=["product", "convolution"])
@pytest.mark.parametrize(
    ("kernel", "stride", "dilation", "groups"), [(7, 1, 1, 1), (7, 1, 9, 1), (8, 4, 1, 1), (7, 1, 1, 6), (1, 1, 1, 1)]
)
def test_causal_convolution(columns: int, kernel: int, stride: int, dilation: int, groups: int) -> None:
    weight, bias = noise(12, 6 // groups, kernel), noise(12, seed=1)
    conv = CausalConv(weight, bias, columns=columns, stride=stride, dilation=dilation, groups=groups)
    x = noise(2, 6, 40, seed=2)
    pad = (kernel - 1) * dilation + 1 - stride
    whole = F.conv1d(F.pad(x, (pad, 0)), weight, bias, stride, 0, dilation, groups)
    for frames in ([10], [1] * 10, [1, 4, 2, 3]):
        torch.testing.assert_close(in_pieces(conv, x, frames, 4), whole, **EXACT)


@pytest.mark.parametrize("columns", [1, 1000])
@pytest.mark.parametrize(("kernel", "stride"), [(16, 8), (10, 5), (2, 2), (7, 3)])
def test_transposed_convolution(columns: int, kernel: int, stride: int) -> None:
    weight, bias = noise(6, 4, kernel), noise(4, seed=1)
    x = noise(2, 6, 10, seed=2)
    whole = F.conv_transpose1d(x, weight, bias, stride)[..., : 10 * stride]
    up = UpsampleConv(weight, bias, stride, columns=columns)
    for frames in ([10], [1] * 10, [3, 1, 6]):
        torch.testing.assert_close(in_pieces(up, x, frames, 1), whole, **EXACT)


@pytest.mark.parametrize("window", [1, 3, 5, 100])
def test_attention_to_a_window(window: int) -> None:
    """Halves of a head rotated as RoFormer says, in full precision and on the whole signal."""
    heads, dim, time, rate = 2, 8, 24, 2
    q, k, v = (noise(heads * dim, 6, seed=i) for i in range(3))
    x = noise(2, 6, time, seed=9)
    table = Rotations(dim, 100.0, CPU)
    joined = torch.cat((interleaved(q, dim), interleaved(k, dim), v))

    def call(part: torch.Tensor, step: Step) -> torch.Tensor:
        batch, _, length = part.shape
        view = WindowView(table, step, length, window=window, rate=rate)
        out = view.attend("layer", F.linear(part.transpose(1, 2).reshape(batch * length, -1), joined), dim)
        return out.view(batch, length, -1).transpose(1, 2)

    angles = torch.outer(torch.arange(time).double(), 100.0 ** -(torch.arange(0, dim, 2).double() / dim))
    cos, sin = torch.cat((angles, angles), 1).cos(), torch.cat((angles, angles), 1).sin()

    def split(weight: torch.Tensor, turn: bool) -> torch.Tensor:
        y = F.linear(x.transpose(1, 2).double(), weight.double()).view(2, time, heads, dim).transpose(1, 2)
        if not turn:
            return y
        return y * cos + torch.cat((-y[..., dim // 2 :], y[..., : dim // 2]), -1) * sin

    distance = torch.arange(time)[:, None] - torch.arange(time)
    seen = (distance >= 0) & (distance < window)
    whole = F.scaled_dot_product_attention(split(q, True), split(k, True), split(v, False), attn_mask=seen)
    expected = whole.transpose(1, 2).reshape(2, time, -1).transpose(1, 2).float()
    for frames in ([12], [1] * 12, [5, 1, 6]):
        torch.testing.assert_close(in_pieces(call, x, frames, rate), expected, **EXACT)


def test_rotations_grow_and_may_be_rounded() -> None:
    table = Rotations(8, 10_000.0, CPU)
    before = table(torch.tensor([3, 1000]))
    table.reserve(5000)
    assert torch.equal(table(torch.tensor([3, 1000])), before)
    assert table(torch.tensor([4999])).shape == (1, 4)
    rounded = torch.view_as_real(Rotations(8, 10_000.0, CPU, rounding=torch.bfloat16)(torch.tensor([7])))
    assert torch.equal(rounded, rounded.bfloat16().float())


def test_rows_of_the_state() -> None:
    state = StreamState(2, 4, CPU, torch.float32)
    state.buffer("a", 3)[:] = torch.tensor([[1.0], [2.0]])
    saved = state.copy_of(1)
    state.buffer("b", 2)[:] = 5
    state.grow(4)
    assert state.buffer("a", 3).tolist() == [[1.0] * 3, [2.0] * 3, [0.0] * 3, [0.0] * 3]
    assert state.bytes_per_row == 20
    state.buffer("b", 2)[3] = 7
    state.restore(3, saved)
    # What was saved before a layer had anything to remember is nothing.
    assert state.buffer("a", 3)[3].tolist() == [2.0] * 3
    assert state.buffer("b", 2)[3].tolist() == [0.0] * 2
    state.clear(0)
    assert state.buffer("a", 3)[0].tolist() == [0.0] * 3


def test_weights_by_name(tmp_path) -> None:
    save_file({"one": torch.ones(2, 3, dtype=torch.bfloat16)}, tmp_path / "model.safetensors")
    weights = CheckpointWeights(Checkpoint(tmp_path), CPU, torch.float16)
    assert weights.raw("one", 2, 3).dtype == torch.float32
    assert weights.take("one", 2, 3).dtype == torch.float16
    for name, shape in (("two", (1,)), ("one", (3, 2))):
        with pytest.raises(WeightsError, match=name):
            weights.raw(name, *shape)
    recorder = ShapeRecorder()
    recorder.raw("x.weight", 4, 5)
    assert recorder.shapes == {"x.weight": (4, 5)}


def test_random_weights_repeat_and_a_model_has_its_say() -> None:
    def draw(name: str, noise: torch.Tensor) -> torch.Tensor | None:
        return noise.fill_(3.0) if name == "special" else None

    one, again = (RandomWeights(5, CPU, torch.float32, draw) for _ in range(2))
    for name, shape in (("a.weight", (30, 40)), ("a.bias", (9,)), ("special", (2,)), ("norm.weight", (4,))):
        assert torch.equal(one.take(name, *shape), again.take(name, *shape))
    assert one.raw("special", 2).tolist() == [3.0, 3.0]
    assert one.raw("norm.weight", 2).tolist() == [1.0, 1.0]


def test_devices() -> None:
    assert device_of("cpu") == CPU
    assert device_of("auto").type in ("cpu", "cuda")
    with pytest.raises(ConfigError, match="abacus"):
        device_of("abacus")
