"""The only module that imports SGLang. Everything that another release may rename is here.

Imported in SGLang's processes alone, never in the server. The layers are bound at import, the engine when it is
started: SGLang imports our model package while it imports its engine, so that must come second.
"""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

import msgspec
import torch
from sglang.srt.layers.activation import SiluAndMul
from sglang.srt.layers.layernorm import RMSNorm
from sglang.srt.layers.linear import MergedColumnParallelLinear, QKVParallelLinear, RowParallelLinear
from sglang.srt.layers.logits_processor import LogitsProcessorOutput
from sglang.srt.layers.radix_attention import RadixAttention
from sglang.srt.layers.rotary_embedding import RotaryEmbedding
from sglang.srt.sampling.custom_logit_processor import CustomLogitProcessor

__all__ = [
    "CustomLogitProcessor",
    "MergedColumnParallelLinear",
    "QKVParallelLinear",
    "RMSNorm",
    "RadixAttention",
    "RowParallelLinear",
    "SiluAndMul",
    "attention_heads",
    "child_pids",
    "ended",
    "generate",
    "load",
    "on_failure",
    "option_types",
    "rotary",
    "sampled",
    "start",
    "token_capacity",
]


# In the scheduler's process -----------------------------------------------------------------------------------------


def attention_heads(heads: int, kv_heads: int) -> tuple[int, int]:
    """How many of the heads this rank of the tensor parallel group holds."""
    from sglang.srt.runtime_context import get_parallel

    ranks = get_parallel().tp_size
    return heads // ranks, max(1, kv_heads // ranks)


def rotary(table: torch.Tensor, *, interleaved: bool, dtype: torch.dtype) -> RotaryEmbedding:
    """SGLang's rotary kernel on our table: complex ``(positions, head_dim / 2)`` (see :class:`Rope`)."""
    positions, half = table.shape
    made = RotaryEmbedding(2 * half, 2 * half, positions, 1.0, not interleaved, dtype)
    made.cos_sin_cache = torch.cat((table.real, table.imag), -1).to(made.cos_sin_cache.dtype)
    return made


def sampled(logits: torch.Tensor) -> LogitsProcessorOutput:
    """What a model's forward returns: float32 ``(B, vocabulary)``."""
    return LogitsProcessorOutput(next_token_logits=logits)


# In the process of the engine ---------------------------------------------------------------------------------------


def option_types() -> dict[str, Any]:
    """The fields of SGLang's server arguments."""
    from sglang.srt.server_args import ServerArgs

    return {field.name: field.type for field in msgspec.structs.fields(ServerArgs) if not field.name.startswith("_")}


def start(arguments: Mapping[str, Any], leaves: Callable[[list[str]], None]) -> Any:
    """SGLang's engine; blocks until the model is loaded. Must be called on the main thread. ``leaves`` is told in
    advance which files SGLang makes and does not remove: its sockets, and the load that its schedulers publish."""
    from sglang.srt.entrypoints.engine import Engine
    from sglang.srt.managers.load_snapshot import shm_path_for
    from sglang.srt.server_args import PortArgs

    choose = PortArgs.init_new

    # An engine that fails to start gives no other way to learn its names.
    def noted(*arguments: Any, **options: Any) -> Any:
        made = choose(*arguments, **options)
        ports = vars(made)
        sockets = [str(v).removeprefix("ipc://") for v in ports.values() if str(v).startswith("ipc://")]
        leaves([*sockets, shm_path_for(ports["instance_id"])])
        return made

    PortArgs.init_new = staticmethod(noted)
    try:
        return Engine(**arguments)
    finally:
        PortArgs.init_new = staticmethod(choose)


def child_pids(engine: Any) -> list[int]:
    """Schedulers and detokenizer, all of which must live."""
    return list(engine.get_all_child_pids())


def on_failure(engine: Any, call: Callable[[], None]) -> None:
    """``call`` runs on the engine's loop when one of SGLang's processes says that it has failed, which it says by a
    signal. In place of SGLang's own handler, which waits for seconds and then kills this process."""
    engine.tokenizer_manager.auto_create_handle_loop()
    engine.loop.add_signal_handler(signal.SIGQUIT, call)


def token_capacity(engine: Any) -> int:
    """Positions that the KV cache holds."""
    return int(engine.get_server_info()["max_total_num_tokens"])


def generate(
    engine: Any, rid: str, ids: Sequence[int], params: Mapping[str, Any], processor: str
) -> AsyncIterator[dict[str, Any]]:
    """Chunks of one request, each with what is new in it. Cancelling the task that reads them aborts the request."""
    from sglang.srt.managers.io_struct import GenerateReqInput

    request = GenerateReqInput(
        rid=rid,
        input_ids=list(ids),
        sampling_params=dict(params),
        custom_logit_processor=processor,
        stream=True,
    )
    found: AsyncIterator[dict[str, Any]] = engine.tokenizer_manager.generate_request(request, None)
    return found


async def ended(engine: Any, rid: str) -> None:
    """Returns when the scheduler has let go of a request that was aborted."""
    state = engine.tokenizer_manager.rid_to_state.get(rid)
    while state is not None and not state.finished:
        await state.event.wait()
        state.event.clear()


async def load(engine: Any) -> tuple[int, int, int]:
    """Requests running and waiting, positions of the KV cache in use (prefixes that are only kept do not count)."""
    found = await engine.tokenizer_manager.get_loads()
    return (
        sum(part.num_running_reqs for part in found),
        sum(part.num_waiting_reqs for part in found),
        sum(part.num_used_tokens for part in found),
    )
