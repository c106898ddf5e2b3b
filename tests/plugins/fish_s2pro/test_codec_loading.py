"""``codec.pth`` in the forms it comes in, and what is wrong with the others."""

from __future__ import annotations

import hashlib
import json
import math
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fish_s2pro.codec.config import CodecConfig, read_config
from fish_s2pro.codec.loading import load_decoder, load_encoder, tensor_shapes
from omni import ConfigError, WeightsError
from omni.codecs import device_of

State = dict[str, Tensor]


@pytest.fixture
def rewritten(ckpt: Path, tmp_path: Path) -> Callable[[Callable[[State], Any]], Path]:
    """A copy of the codec's files whose content went through a function."""

    def rewrite(change: Callable[[State], Any]) -> Path:
        state = torch.load(ckpt / "codec.pth", weights_only=True)
        torch.save(change(state), tmp_path / "codec.pth")
        shutil.copy(ckpt / "codec_config.json", tmp_path)
        return tmp_path

    return rewrite


def changed(name: str, value: Callable[[Tensor], Tensor] | None) -> Callable[[State], State]:
    def change(state: State) -> State:
        old = state.pop(name)
        return state if value is None else state | {name: value(old)}

    return change


@pytest.mark.parametrize(
    "form",
    [
        lambda state: {"state_dict": state, "epoch": 3},
        lambda state: {f"generator.{name}": value for name, value in state.items()},
        lambda state: {
            "state_dict": {f"generator.{name}": value for name, value in state.items()}
            | {"discriminator.weight": torch.zeros(3)}
        },
        lambda state: {name: value for name, value in state.items() if "causal_mask" not in name},
    ],
    ids=["nested", "generator", "both, with a discriminator", "without the stale masks"],
)
def test_forms(rewritten: Callable[..., Path], ckpt: Path, golden: State, form: Callable[[State], Any]) -> None:
    folder = rewritten(form)
    codes = golden["dec.5.codes"].long()[None]
    assert torch.equal(load_decoder(folder).decode(codes), load_decoder(ckpt).decode(codes))
    wave = golden["enc.wav"][:4096]
    assert torch.equal(load_encoder(folder).encode(wave), load_encoder(ckpt).encode(wave))


def test_half_precision_weights_are_widened(rewritten: Callable[..., Path], golden: State) -> None:
    folder = rewritten(lambda state: {n: v.half() if v.is_floating_point() else v for n, v in state.items()})
    audio = load_decoder(folder).decode(golden["dec.5.codes"].long()[None])
    assert audio.dtype == torch.float32
    assert (audio[0] - golden["dec.5.audio"]).abs().max() < 0.2


@pytest.mark.parametrize("load", [load_encoder, load_decoder])
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (changed("decoder.model.2.block.0.alpha", None), ["lacks", "decoder.model.2.block.0.alpha", "[1, 24, 1]"]),
        (
            changed("quantizer.pre_module.layers.1.attention.wqkv.weight", lambda t: t[:-1]),
            ["quantizer.pre_module.layers.1.attention.wqkv.weight", "[191, 64]", "[192, 64]"],
        ),
        (changed("encoder.block.0.conv.bias", lambda t: t.int()), ["encoder.block.0.conv.bias", "int32"]),
        (
            lambda state: state | {"quantizer.post_module.layers.2.ffn_norm.weight": torch.ones(64)},
            ["quantizer.post_module.layers.2.ffn_norm.weight", "no place"],
        ),
        (lambda state: list(state.values()), ["list"]),
        (lambda state: {}, ["lacks"]),
    ],
    ids=["missing", "misshapen", "integers", "one layer more", "a list", "nothing"],
)
def test_what_does_not_fit_is_named(
    rewritten: Callable[..., Path],
    load: Callable[[Path], Any],
    change: Callable[[State], Any],
    words: list[str],
) -> None:
    with pytest.raises(WeightsError) as error:
        load(rewritten(change))
    assert all(word in error.value.message for word in words), error.value.message


class _Payload:
    def __reduce__(self) -> Any:
        return print, ("pickle ran",)


@pytest.mark.parametrize(
    "content",
    [b"", b"not a checkpoint", pickle.dumps({"a": 1}), None],
    ids=["empty", "text", "a bare pickle", "absent"],
)
def test_not_a_checkpoint(ckpt: Path, tmp_path: Path, content: bytes | None) -> None:
    shutil.copy(ckpt / "codec_config.json", tmp_path)
    if content is not None:
        (tmp_path / "codec.pth").write_bytes(content)
    with pytest.raises(WeightsError, match=r"codec\.pth"):
        load_decoder(tmp_path)


def test_a_pickle_with_code_does_not_run(rewritten: Callable[..., Path], capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(WeightsError, match="plain tensors"):
        load_decoder(rewritten(lambda state: state | {"extra": _Payload()}))
    assert "pickle ran" not in capfd.readouterr().out


def test_without_a_configuration_the_published_model_is_expected(ckpt: Path, tmp_path: Path) -> None:
    shutil.copy(ckpt / "codec.pth", tmp_path)
    assert read_config(tmp_path) == CodecConfig()
    with pytest.raises(WeightsError, match=r"the model needs \[64, 1, 1\]"):
        load_decoder(tmp_path)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"decoder_rates": [8, 8, 4]}, "decoder_rates"),
        ({"encoder_dim": 8}, "encoder_dim"),
        ({"sample_rate": "fast"}, "sample_rate"),
        ({"quantizer": {"transformer": {"n_local_heads": 2}}}, "n_local_heads"),
        ({"quantizer": {"transformer": {"n_head": 3}}}, "n_head"),
        ({"encoder_transformer_layers": [4]}, "encoder_transformer_layers"),
        ({"decoder_dim": 50}, "decoder_dim"),
    ],
)
def test_wrong_configuration(ckpt: Path, tmp_path: Path, change: dict[str, Any], word: str) -> None:
    fields = json.loads((ckpt / "codec_config.json").read_text())
    nested = {key: value for key, value in change.items() if isinstance(value, dict)}
    fields |= {key: value for key, value in change.items() if key not in nested}
    for value in nested.values():
        fields["quantizer"]["transformer"] |= value["transformer"]
    (tmp_path / "codec_config.json").write_text(json.dumps(fields))
    with pytest.raises(WeightsError, match=word):
        read_config(tmp_path)


def test_broken_json_is_a_weights_error(tmp_path: Path) -> None:
    (tmp_path / "codec_config.json").write_text("{")
    with pytest.raises(WeightsError, match=r"codec_config\.json"):
        read_config(tmp_path)


def test_names_and_shapes_of_the_published_checkpoint() -> None:
    """The digest is that of the published list: 535 tensors, float32."""
    shapes = tensor_shapes(CodecConfig())
    assert len(shapes) == 535
    assert sum(math.prod(shape) for shape in shapes.values()) == 391_430_530
    lines = [f"{name}|{'x'.join(map(str, shape))}" for name, shape in sorted(shapes.items())]
    digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()
    assert digest == "9f0402a9144c8bd78e422da66d811952c38279e5a939fd05ba4ab7a589ce4f04"


@pytest.mark.parametrize("width", [1 / 16, 0.25, 0.5])
def test_scaled_configurations_keep_the_depth(width: float) -> None:
    full, scaled = CodecConfig(), CodecConfig().scaled(width)
    assert tensor_shapes(scaled).keys() == tensor_shapes(full).keys()
    assert scaled.frame_samples == full.frame_samples
    assert scaled.encoder_dim == full.encoder_dim * width
    assert scaled.decoder_dim == full.decoder_dim * width
    assert CodecConfig().scaled(1.0) == full


def test_an_unknown_device_is_a_config_error() -> None:
    assert device_of("cpu") == torch.device("cpu")
    with pytest.raises(ConfigError, match="warp"):
        device_of("warp")


_MEASURE = """
import re, sys
from pathlib import Path
from fish_s2pro.codec import loading
def kib(field):
    return int(re.search(rf"^{field}:\\s+(\\d+)", Path("/proc/self/status").read_text(), re.M)[1])
loading.tensor_shapes(loading.read_config(Path(sys.argv[1])))
Path("/proc/self/clear_refs").write_text("5")
before = kib("VmRSS")
kept = loading.load_decoder(Path(sys.argv[1])), loading.load_encoder(Path(sys.argv[1]))
print((kib("VmHWM") - before) * 1024)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_while_loading_stays_near_the_weights(tmp_path: Path) -> None:
    """Resident memory at its highest, file pages included, over what it was before: at most 1.2 times the weights."""
    fields = CodecConfig().scaled(0.5)
    (tmp_path / "codec_config.json").write_text(fields.model_dump_json())
    state = {name: torch.full(shape, 0.01) for name, shape in tensor_shapes(fields).items()}
    torch.save(state, tmp_path / "codec.pth")
    weights = sum(tensor.nbytes for tensor in state.values())
    done = subprocess.run(
        [sys.executable, "-c", _MEASURE, str(tmp_path)], capture_output=True, text=True, check=True, timeout=100
    )
    assert int(done.stdout) < 1.2 * weights
    # A measurement that sees nothing would pass as well.
    assert int(done.stdout) > 0.9 * weights
