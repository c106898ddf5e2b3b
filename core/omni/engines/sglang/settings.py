"""Settings of the engine: which of SGLang's options pass through, and the folder that SGLang takes for a model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from omni.engines.base import ModelShape, ModelSource
from omni.errors import ConfigError

OURS = {
    "model_path": "the recipe's weights are used",
    "tokenizer_path": "the recipe's own tokenizer is used",
    "skip_tokenizer_init": "the recipe's own tokenizer is used",
    "load_format": "the recipe's own loader is used",
    "device": "set the stage's device",
    "dtype": "set the stage's dtype",
    "base_gpu_id": "set the stage's device",
    "context_length": "it is the model's",
    "enable_custom_logit_processor": "omni needs it",
    "stream_interval": "every step is delivered",
    "incremental_streaming_output": "omni needs it",
    "disable_overlap_schedule": "the next step's input is made from this step's codes",
    "disable_prefill_cuda_graph": "prompts are embedded on the host",
    "cuda_graph_backend_prefill": "prompts are embedded on the host",
    "cuda_graph_config": "set the options of decode graphs one by one",
    "enable_mixed_chunk": "prompts and decode steps run apart",
    "enable_torch_compile": "the step is the plugin's",
    "is_embedding": "the model generates",
    "preferred_sampling_params": "a request's own parameters are used",
    "max_queued_requests": "set max_waiting",
    "nnodes": "the engine runs on one machine",
    "node_rank": "the engine runs on one machine",
    "pp_size": "the model is not cut into pipeline stages",
    "dp_size": "start several recipes instead",
    "enable_dp_attention": "start several recipes instead",
    "speculative_algorithm": "the model has no draft model",
    "disaggregation_mode": "prefill and decode run in one engine",
    "enable_lora": "the model takes no adapters",
    "custom_sigquit_handler": "omni watches SGLang's processes",
}
"""Options of SGLang that cannot be set, and why."""

SLACK = 16
"""Positions by which SGLang's limits are wider than ours, so that ours is the one that a request meets."""


class SGLangOptions(BaseModel):
    """Options of the engine ``sglang``: every further name is one of SGLang's server arguments, passed on as it is."""

    model_config = ConfigDict(frozen=True, extra="allow")

    max_running_requests: Annotated[int, Field(ge=1, le=4096)] = 32
    """Requests that are decoded together."""
    max_waiting: Annotated[int, Field(ge=0)] = 1024
    """Requests that may wait; one more is refused with :class:`omni.errors.Busy`."""
    max_candidates: Annotated[int, Field(ge=0)] = 0
    """CUDA graphs fix how many of the best entries a draw looks at. 0: all, so any ``top_k`` is served. Else a request
    with a larger ``top_k``, or without one, is refused, and a step sorts less."""

    def arguments(self) -> dict[str, Any]:
        """What was set of SGLang's own options."""
        return {"max_running_requests": self.max_running_requests, **(self.__pydantic_extra__ or {})}


def parse_options(options: Mapping[str, Any]) -> SGLangOptions:
    """Raises :class:`ConfigError` naming every option that is out of range or not to be set."""
    for name in options:
        if name in OURS:
            raise ConfigError(f"options of the engine sglang: {name} cannot be set: {OURS[name]}")
    try:
        return SGLangOptions.model_validate(dict(options))
    except ValidationError as error:
        lines = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
        raise ConfigError(f"options of the engine sglang: {lines}") from error


def refuse_wrong(arguments: Mapping[str, Any], known: Mapping[str, Any]) -> None:
    """``known``: SGLang's options and their types.

    Raises:
        ConfigError: naming every option that SGLang does not have, with what may have been meant, and every value of
            another type or that is none of its choices.
    """
    wrong = [why for name, value in arguments.items() if (why := _wrong(name, value, known))]
    if wrong:
        raise ConfigError(f"options of the engine sglang: {'; '.join(wrong)}")


def _wrong(name: str, value: Any, known: Mapping[str, Any]) -> str | None:
    import difflib

    if name not in known:
        close = difflib.get_close_matches(name, known, 3)
        hint = f"; did you mean {' or '.join(close)}?" if close else ""
        return f"SGLang has no option {name!r}{hint}"
    try:
        msgspec.convert(value, known[name])
    except msgspec.ValidationError as error:
        return f"{name}: {error}"
    except TypeError:
        return None  # a type that cannot be checked from outside: SGLang sees the value as it is
    for note in getattr(known[name], "__metadata__", ()):
        choices = getattr(note, "choices", None)
        if choices and isinstance(value, str) and value not in choices:
            return f"{name} must be one of {', '.join(map(str, choices))}, not {value!r}"
    return None


def arguments(source: ModelSource, shape: ModelShape, options: SGLangOptions, folder: Path) -> dict[str, Any]:
    """Server arguments of SGLang: ours, then what was set, then defaults that fit speech on this device."""
    device, _, index = source.device.partition(":")
    ours: dict[str, Any] = {
        "model_path": str(folder),
        "skip_tokenizer_init": True,
        "device": device,
        "dtype": source.dtype,
        "base_gpu_id": int(index or 0),
        "context_length": shape.max_positions + SLACK,
        "enable_custom_logit_processor": True,
        "stream_interval": 1,
        "incremental_streaming_output": True,
        "disable_overlap_schedule": True,
        "disable_prefill_cuda_graph": True,
    }
    defaults: dict[str, Any] = {"sleep_on_idle": True, "log_level": "error", "grammar_backend": "none"}
    if device == "cpu":
        # SGLang would take most of the machine's memory, and its own kernels need instructions that few CPUs have.
        tokens = min(options.max_running_requests * shape.max_positions, 1 << 16)
        defaults |= {"attention_backend": "torch_native", "max_total_tokens": tokens}
    return {**defaults, **options.arguments(), **ours}


# The model's folder -------------------------------------------------------------------------------------------------


class ModelSettings(msgspec.Struct, kw_only=True, frozen=True):
    """What the model class needs to know. ``source``: ``module:Class`` of the :class:`ModelSource`; ``fields``: its
    fields in JSON; ``rows``: request slots; ``candidates``: fixed number of them, None: as each batch needs."""

    source: str
    fields: str
    rows: int
    candidates: int | None


def model_settings(source: ModelSource, options: SGLangOptions) -> ModelSettings:
    cls = type(source)
    set_by_user = options.arguments()
    graphs = source.device.startswith("cuda") and not (
        set_by_user.get("disable_cuda_graph") or set_by_user.get("disable_decode_cuda_graph")
    )
    return ModelSettings(
        source=f"{cls.__module__}:{cls.__qualname__}",
        fields=msgspec.json.encode(source).decode(),
        rows=options.max_running_requests,
        candidates=options.max_candidates if graphs else None,
    )


def write_folder(folder: Path, shape: ModelShape, settings: ModelSettings) -> None:
    """A model's folder as SGLang wants to see it: sizes for the KV cache, our class, and no weights.

    SGLang reads sizes by the names of transformers' plainest decoder. Its vocabulary is "goes on" and "has ended".
    """
    from safetensors.numpy import save_file

    block = shape.stack.block
    config = {
        "architectures": ["OmniARModel"],
        "model_type": "llama",
        "hidden_size": block.dim,
        "intermediate_size": block.ffn,
        "num_hidden_layers": shape.stack.layers,
        "num_attention_heads": block.heads,
        "num_key_value_heads": block.kv_heads,
        "head_dim": block.head_dim,
        "max_position_embeddings": shape.max_positions + SLACK,
        "vocab_size": 2,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "pad_token_id": 0,
        "omni": msgspec.to_builtins(settings),
    }
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    # SGLang's loader wants a file of weights; it is never read.
    save_file({"none": np.zeros(1, np.float32)}, folder / "model.safetensors")
