"""The codec against one written as plainly as possible: whole signals, zero padding, full attention with a band mask.

The reference's arrays cover 40 frames of one shape; this covers other shapes and signals longer than every window.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from fish_s2pro.codec.config import CodecConfig
from fish_s2pro.codec.decoder import CodecDecoder
from fish_s2pro.codec.encoder import CodecEncoder
from fish_s2pro.codec.weights import drawn
from omni.codecs import RandomWeights

OTHER = CodecConfig.model_validate(
    {
        "sample_rate": 24000,
        "encoder_dim": 8,
        "encoder_rates": [2, 2, 4],
        "encoder_transformer_layers": [0, 0, 2],
        "decoder_dim": 40,
        "decoder_rates": [4, 2, 2],
        "transformer_general_config": {"head_dim": 32},
        "quantizer": {
            "input_dim": 64,
            "n_codebooks": 5,
            "codebook_size": 24,
            "codebook_dim": 6,
            "semantic_codebook_size": 96,
            "downsample_factor": [2, 2],
            "transformer": {"window_size": 5, "n_layer": 3, "n_head": 4, "dim": 64, "head_dim": 16,
                            "intermediate_size": 80},
        },
    }
)  # fmt: skip
"""Every number differs from the published model's."""


CPU = torch.device("cpu")


def noise() -> RandomWeights:
    return RandomWeights(0, CPU, torch.float32, drawn)


def test_decode() -> None:
    decoder = CodecDecoder(noise(), OTHER, CPU)
    generator = torch.Generator().manual_seed(0)
    sizes = OTHER.quantizer.codebook_sizes
    codes = torch.stack([torch.randint(0, size, (90,), generator=generator) for size in sizes])
    torch.testing.assert_close(decoder.decode(codes[None])[0], plain_decode(OTHER, codes), atol=1e-4, rtol=0.0)


def test_encode_beyond_both_windows() -> None:
    """600 frames hold 2,400 positions of the encoder's transformer, whose window is 512."""
    encoder = CodecEncoder(noise(), OTHER, CPU)
    wave = torch.randn(600 * OTHER.frame_samples, generator=torch.Generator().manual_seed(3)) * 0.1
    codes = encoder.encode(wave)
    expected, margin = plain_encode(OTHER, wave)
    assert codes.shape == expected.shape == (6, 600)
    # A residual is what is left of several near-equal numbers: only choices that float noise cannot turn count.
    clear = (margin > 1e-4).cumprod(0).bool()
    assert clear.float().mean() > 0.95
    assert torch.equal(codes[clear], expected[clear])
    assert torch.equal(encoder.encode(wave[: 100 * OTHER.frame_samples]), codes[:, :100])


class Keeping(RandomWeights):
    """Random weights that stay as they were given out."""

    def __init__(self) -> None:
        super().__init__(0, CPU, torch.float32, drawn)
        self.kept: dict[str, Tensor] = {}

    def raw(self, name: str, *shape: int) -> Tensor:
        value = super().raw(name, *shape)
        self.kept[name] = value.clone()
        return value


class Plain:
    def __init__(self, config: CodecConfig) -> None:
        self.config = config
        decoding, encoding = Keeping(), Keeping()
        CodecDecoder(decoding, config, CPU)
        CodecEncoder(encoding, config, CPU)
        self.decoding, self.encoding = decoding.kept, encoding.kept

    def conv(self, w: dict[str, Tensor], name: str, x: Tensor, *, stride: int = 1, dilation: int = 1) -> Tensor:
        weight = self.weight(w, name)
        reach = (weight.shape[2] - 1) * dilation + 1
        groups = x.shape[1] // weight.shape[1]
        return F.conv1d(F.pad(x, (reach - stride, 0)), weight, w[f"{name}.bias"], stride, 0, dilation, groups)

    def weight(self, w: dict[str, Tensor], name: str) -> Tensor:
        if f"{name}.weight" in w:
            return w[f"{name}.weight"]
        g, v = (w[f"{name}.parametrizations.weight.original{i}"] for i in (0, 1))
        return g * v / v.flatten(1).norm(dim=1).view_as(g)

    def transposed(self, w: dict[str, Tensor], name: str, x: Tensor, stride: int) -> Tensor:
        weight = self.weight(w, name)
        return F.conv_transpose1d(x, weight, w[f"{name}.bias"], stride)[..., : x.shape[-1] * stride]

    def snake(self, w: dict[str, Tensor], name: str, x: Tensor) -> Tensor:
        alpha = w[f"{name}.alpha"]
        return x + (alpha * x).sin() ** 2 / (alpha + 1e-9)

    def residual(self, w: dict[str, Tensor], name: str, x: Tensor, dilation: int) -> Tensor:
        y = self.conv(w, f"{name}.block.1.conv", self.snake(w, f"{name}.block.0", x), dilation=dilation)
        return x + self.conv(w, f"{name}.block.3.conv", self.snake(w, f"{name}.block.2", y))

    def convnext(self, w: dict[str, Tensor], name: str, x: Tensor) -> Tensor:
        y = self.conv(w, f"{name}.dwconv.conv", x).transpose(1, 2)
        y = F.layer_norm(y, y.shape[-1:], w[f"{name}.norm.weight"], w[f"{name}.norm.bias"], 1e-6)
        y = F.gelu(F.linear(y, w[f"{name}.pwconv1.weight"], w[f"{name}.pwconv1.bias"]))
        y = F.linear(y, w[f"{name}.pwconv2.weight"], w[f"{name}.pwconv2.bias"]) * w[f"{name}.gamma"]
        return x + y.transpose(1, 2)

    def transformer(self, w: dict[str, Tensor], name: str, x: Tensor, layers: int, head: int, window: int) -> Tensor:
        x = x.transpose(1, 2)[0]
        length = len(x)
        position = torch.arange(length)
        angle = torch.outer(position.float(), 10000.0 ** (-torch.arange(0, head, 2).float() / head))
        cos, sin = (f(angle).bfloat16().float()[:, None] for f in (torch.cos, torch.sin))
        behind = position[:, None] - position[None]
        mask = (behind >= 0) & (behind < window)

        def turn(t: Tensor) -> Tensor:
            even, odd = t[..., ::2], t[..., 1::2]
            return torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2)

        def norm(t: Tensor, weight: str) -> Tensor:
            return t * (t.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * w[weight]

        for i in range(layers):
            layer = f"{name}.layers.{i}"
            qkv = norm(x, f"{layer}.attention_norm.weight") @ w[f"{layer}.attention.wqkv.weight"].T
            q, k, v = (t.view(length, -1, head) for t in qkv.chunk(3, -1))
            score = torch.einsum("qhd,khd->hqk", turn(q), turn(k)) * head**-0.5
            mixed = torch.einsum("hqk,khd->qhd", score.masked_fill(~mask, float("-inf")).softmax(-1), v).flatten(1)
            x = x + mixed @ w[f"{layer}.attention.wo.weight"].T * w[f"{layer}.attention_layer_scale.gamma"]
            y = norm(x, f"{layer}.ffn_norm.weight")
            gate, up = (y @ w[f"{layer}.feed_forward.{n}.weight"].T for n in ("w1", "w3"))
            x = x + (F.silu(gate) * up) @ w[f"{layer}.feed_forward.w2.weight"].T * w[f"{layer}.ffn_layer_scale.gamma"]
        return norm(x, f"{name}.norm.weight").T[None]

    def books(self) -> list[str]:
        count = self.config.quantizer.n_codebooks
        residual = [f"quantizer.quantizer.quantizers.{i}" for i in range(count)]
        return ["quantizer.semantic_quantizer.quantizers.0", *residual]

    def project(self, w: dict[str, Tensor], name: str, x: Tensor) -> Tensor:
        v = w[f"{name}.weight_v"]
        weight = w[f"{name}.weight_g"] * v / v.norm(dim=(1, 2), keepdim=True)
        return F.linear(x, weight[..., 0], w[f"{name}.bias"])


def plain_decode(config: CodecConfig, codes: Tensor) -> Tensor:
    plain = Plain(config)
    w, quantizer = plain.decoding, config.quantizer
    x = sum(
        plain.project(w, f"{book}.out_proj", w[f"{book}.codebook.weight"][code])
        for book, code in zip(plain.books(), codes, strict=True)
    )
    t = quantizer.transformer
    x = plain.transformer(w, "quantizer.post_module", x.T[None], t.n_layer, t.head_dim, t.window_size)
    for i, factor in enumerate(reversed(quantizer.downsample_factor)):
        x = plain.transposed(w, f"quantizer.upsample.{i}.0.conv", x, factor)
        x = plain.convnext(w, f"quantizer.upsample.{i}.1", x)
    x = plain.conv(w, "decoder.model.0.conv", x)
    for i, rate in enumerate(config.decoder_rates, start=1):
        block = f"decoder.model.{i}.block"
        x = plain.transposed(w, f"{block}.1.conv", plain.snake(w, f"{block}.0", x), rate)
        for j, dilation in ((2, 1), (3, 3), (4, 9)):
            x = plain.residual(w, f"{block}.{j}", x, dilation)
    last = len(config.decoder_rates) + 1
    x = plain.conv(w, f"decoder.model.{last + 1}.conv", plain.snake(w, f"decoder.model.{last}", x))
    return x.tanh()[0, 0]


def plain_encode(config: CodecConfig, wave: Tensor) -> tuple[Tensor, Tensor]:
    """Codes, and by how much the best entry beats the second."""
    plain = Plain(config)
    w, quantizer = plain.encoding, config.quantizer
    x = plain.conv(w, "encoder.block.0.conv", wave[None, None])
    for i, (rate, layers) in enumerate(
        zip(config.encoder_rates, config.encoder_transformer_layers, strict=True), start=1
    ):
        block = f"encoder.block.{i}.block"
        for j, dilation in enumerate((1, 3, 9)):
            x = plain.residual(w, f"{block}.{j}", x, dilation)
        x = plain.conv(w, f"{block}.4.conv", plain.snake(w, f"{block}.3", x), stride=rate)
        if layers:
            x = plain.transformer(w, f"{block}.5", x, layers, config.transformer_general_config.head_dim, 512)
    last = len(config.encoder_rates) + 1
    x = plain.conv(w, f"encoder.block.{last + 1}.conv", plain.snake(w, f"encoder.block.{last}", x))
    for i, factor in enumerate(quantizer.downsample_factor):
        x = plain.conv(w, f"quantizer.downsample.{i}.0.conv", x, stride=factor)
        x = plain.convnext(w, f"quantizer.downsample.{i}.1", x)
    t = quantizer.transformer
    rest = plain.transformer(w, "quantizer.pre_module", x, t.n_layer, t.head_dim, t.window_size)[0].T
    codes, margins = [], []
    for book in plain.books():
        table = w[f"{book}.codebook.weight"]
        likeness = F.normalize(plain.project(w, f"{book}.in_proj", rest), dim=-1) @ F.normalize(table, dim=-1).T
        best = likeness.topk(2, dim=-1)
        codes.append(best.indices[:, 0])
        margins.append(best.values[:, 0] - best.values[:, 1])
        rest = rest - plain.project(w, f"{book}.out_proj", table[codes[-1]])
    return torch.stack(codes), torch.stack(margins)
