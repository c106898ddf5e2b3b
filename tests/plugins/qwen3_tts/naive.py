"""The talker written plainly from its description: whole sequences anew at every step, no cache, no tables."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor


class NaiveTalker:
    def __init__(self, folder: Path) -> None:
        self.config = json.loads((folder / "config.json").read_text())
        self.talker = self.config["talker_config"]
        self.tensors = load_file(folder / "model.safetensors")

    def weight(self, name: str) -> Tensor:
        return self.tensors[name]

    def linear(self, x: Tensor, name: str) -> Tensor:
        return F.linear(x, self.weight(f"{name}.weight"), self.tensors.get(f"{name}.bias"))

    def stack(self, x: Tensor, prefix: str, c: dict[str, Any]) -> Tensor:
        """``(T, hidden)`` through decoder layers and the last norm."""
        heads, groups, dim, eps = c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"], c["rms_norm_eps"]
        angles = torch.outer(torch.arange(len(x)).float(), c["rope_theta"] ** -(torch.arange(0, dim, 2).float() / dim))
        cos, sin = torch.cat((angles, angles), 1).cos(), torch.cat((angles, angles), 1).sin()

        def norm(y: Tensor, name: str) -> Tensor:
            return F.rms_norm(y, y.shape[-1:], self.weight(f"{name}.weight"), eps)

        def turned(y: Tensor) -> Tensor:
            half = torch.cat((-y[..., dim // 2 :], y[..., : dim // 2]), -1)
            return y * cos[:, None] + half * sin[:, None]

        for i in range(c["num_hidden_layers"]):
            layer = f"{prefix}.layers.{i}"
            y = norm(x, f"{layer}.input_layernorm")
            q, k, v = (self.linear(y, f"{layer}.self_attn.{n}_proj").view(len(x), -1, dim) for n in "qkv")
            q, k = (turned(norm(t, f"{layer}.self_attn.{n}_norm")) for t, n in ((q, "q"), (k, "k")))
            k, v = (t.repeat_interleave(heads // groups, 1) for t in (k, v))
            scores = torch.einsum("qhd,khd->hqk", q, k) / dim**0.5
            scores = scores.masked_fill(torch.ones_like(scores[0]).triu(1).bool(), -torch.inf).softmax(-1)
            mixed = torch.einsum("hqk,khd->qhd", scores, v).reshape(len(x), -1)
            x = x + self.linear(mixed, f"{layer}.self_attn.o_proj")
            y = norm(x, f"{layer}.post_attention_layernorm")
            gate, up = self.linear(y, f"{layer}.mlp.gate_proj"), self.linear(y, f"{layer}.mlp.up_proj")
            x = x + self.linear(F.silu(gate) * up, f"{layer}.mlp.down_proj")
        return norm(x, f"{prefix}.norm")

    def text(self, ids: Tensor) -> Tensor:
        x = self.weight("talker.model.text_embedding.weight")[ids]
        x = F.silu(self.linear(x, "talker.text_projection.linear_fc1"))
        return self.linear(x, "talker.text_projection.linear_fc2")

    def codec(self, group: int, code: Any) -> Tensor:
        name = "talker.model" if group == 0 else "talker.code_predictor.model"
        suffix = "" if group == 0 else f".{group - 1}"
        return self.weight(f"{name}.codec_embedding{suffix}.weight")[code]

    def narrowed(self, x: Tensor) -> Tensor:
        name = "talker.code_predictor.small_to_mtp_projection"
        return self.linear(x, name) if f"{name}.weight" in self.tensors else x

    def frame(self, hidden: Tensor, first: int) -> list[int]:
        """All codes of a frame, greedily."""
        codes, fed = [first], [hidden, self.codec(0, first)]
        for group in range(1, self.talker["num_code_groups"]):
            x = self.narrowed(torch.stack(fed))
            out = self.stack(x, "talker.code_predictor.model", self.talker["code_predictor_config"])[-1]
            codes.append(int(self.linear(out, f"talker.code_predictor.lm_head.{group - 1}").argmax()))
            fed.append(self.codec(group, codes[-1]))
        return codes

    def speak(
        self, tokens: np.ndarray, codes: np.ndarray, tail: list[int], frames: int, vector: Tensor | None = None
    ) -> Tensor:
        """Greedy codes ``(frames, groups)`` after a prompt of columns, which are those of :mod:`qwen3_tts.model`."""
        size, vocabulary = self.talker["vocab_size"] - 1024, self.talker["vocab_size"]
        positions = []
        for column in range(len(tokens)):
            x = self.text(torch.tensor(tokens[column]))
            first = int(codes[0, column])
            if first < vocabulary:
                x = x + self.codec(0, first)
            elif first == vocabulary + 1:
                assert vector is not None
                x = x + vector
            if first < size:
                x = x + sum(self.codec(group, int(codes[group, column])) for group in range(1, len(codes)))
            positions.append(x)
        spoken: list[list[int]] = []
        for index in range(frames):
            hidden = self.stack(torch.stack(positions), "talker.model", self.talker)[-1]
            scores = self.linear(hidden, "talker.codec_head")
            for code in {c[0] for c in spoken}:
                scores[code] = scores[code] * 1.05 if scores[code] < 0 else scores[code] / 1.05
            end = self.talker["codec_eos_token_id"]
            allowed = [*range(size), end] if index >= 2 else list(range(size))
            first = allowed[int(scores[allowed].argmax())]
            if first == end:
                break
            spoken.append(self.frame(hidden, first))
            text = tail[index] if index < len(tail) else self.config["tts_pad_token_id"]
            x = sum(self.codec(group, code) for group, code in enumerate(spoken[-1]))
            positions.append(x + self.text(torch.tensor(text)))
        return torch.tensor(spoken)


def wider(source: Path, folder: Path, seed: int) -> Path:
    """A random checkpoint of other sizes than ``source``, whose predictor is narrower than its talker, as in the larger
    of the published models; the talker alone, with the tokenizer of ``source``."""
    folder.mkdir()
    for name in ("vocab.json", "merges.txt", "generation_config.json"):
        (folder / name).write_bytes((source / name).read_bytes())
    config = json.loads((source / "config.json").read_text())
    talker = config["talker_config"]
    sizes = {"num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 8, "num_hidden_layers": 2}
    talker.update(sizes, hidden_size=40, intermediate_size=72, text_hidden_size=24, rope_theta=1e4)
    predictor = talker["code_predictor_config"]
    predictor.update(
        num_attention_heads=2, num_key_value_heads=1, head_dim=32, hidden_size=24, intermediate_size=48, rope_theta=1e5
    )
    config["tts_model_size"] = "1b7"
    (folder / "config.json").write_text(json.dumps(config))
    generator = torch.Generator().manual_seed(seed)
    tensors: dict[str, Tensor] = {}

    def add(name: str, *shape: int, scale: float = 1.0) -> None:
        noise = torch.randn(shape, generator=generator)
        tensors[name] = 1 + 0.2 * noise if name.endswith("norm.weight") else noise * scale * shape[-1] ** -0.5

    def stack(prefix: str, c: dict[str, Any]) -> None:
        width, heads, groups, dim = c["hidden_size"], c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]
        for i in range(c["num_hidden_layers"]):
            layer = f"{prefix}.layers.{i}"
            for name, rows, columns in (
                ("self_attn.q_proj", heads * dim, width),
                ("self_attn.k_proj", groups * dim, width),
                ("self_attn.v_proj", groups * dim, width),
                ("self_attn.o_proj", width, heads * dim),
                ("mlp.gate_proj", c["intermediate_size"], width),
                ("mlp.up_proj", c["intermediate_size"], width),
                ("mlp.down_proj", width, c["intermediate_size"]),
            ):
                add(f"{layer}.{name}.weight", rows, columns)
            for name, rows in (("input_layernorm", width), ("post_attention_layernorm", width)):
                add(f"{layer}.{name}.weight", rows)
                tensors[f"{layer}.{name}.weight"] = 1 + 0.2 * torch.randn(rows, generator=generator)
            for name in ("q_norm", "k_norm"):
                add(f"{layer}.self_attn.{name}.weight", dim)
        add(f"{prefix}.norm.weight", width)

    width, narrow, text = talker["hidden_size"], predictor["hidden_size"], talker["text_hidden_size"]
    stack("talker.model", talker)
    stack("talker.code_predictor.model", predictor)
    add("talker.model.text_embedding.weight", talker["text_vocab_size"], text, scale=4.0)
    add("talker.model.codec_embedding.weight", talker["vocab_size"], width, scale=4.0)
    add("talker.codec_head.weight", talker["vocab_size"], width, scale=4.0)
    for name, rows, columns in (("linear_fc1", text, text), ("linear_fc2", width, text)):
        add(f"talker.text_projection.{name}.weight", rows, columns)
        add(f"talker.text_projection.{name}.bias", rows)
    add("talker.code_predictor.small_to_mtp_projection.weight", narrow, width)
    add("talker.code_predictor.small_to_mtp_projection.bias", narrow)
    for i in range(talker["num_code_groups"] - 1):
        add(f"talker.code_predictor.model.codec_embedding.{i}.weight", predictor["vocab_size"], width, scale=4.0)
        add(f"talker.code_predictor.lm_head.{i}.weight", predictor["vocab_size"], narrow, scale=4.0)
    save_file(tensors, folder / "model.safetensors")
    return folder
