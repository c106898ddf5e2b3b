"""The model class that SGLang runs: any plugin's AR model, on a slow transformer of SGLang's layers.

SGLang sees a vocabulary of two: 0 goes on, 1 ends. Tokens and codes are chosen here, by the model's own ``step``, and
stay in buffers by SGLang's request slots; nothing in a decode step looks at them on the host, so the step can be
captured in a CUDA graph. After the forward, outside of the graph, SGLang calls our logit processor, which takes the
step's columns to the request's ``customized_info`` on the host. So a request carries all that it has generated, and
its state is rebuilt from that whenever SGLang computes it anew.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, ClassVar

import msgspec
import numpy as np
import torch
from torch import Tensor, nn

from omni.engines.base import ModelSource, Prompt
from omni.engines.sglang import adapter, request
from omni.engines.sglang.settings import ModelSettings
from omni.engines.sglang.stack import SGLangStack, defaults
from omni.engines.torch import PromptSlice, Step

DATA = "omni"
"""The key under which a request's ``custom_params`` hold its :class:`request.RequestData`."""
COLUMNS = "omni_columns"
"""The key under which ``customized_info`` holds ``[step of the engine, token, codes...]`` of every step."""
_REQUEST = "__req__"
"""Where SGLang puts the request itself for logit processors."""
_DECODED = "omni_request"


class _Request:
    """A request's data, decoded."""

    def __init__(self, data: request.RequestData, width: int) -> None:
        self.columns = np.frombuffer(data.columns, np.int64).reshape(-1, width)
        self.params = data.params
        self.seed = data.seed
        self.prompt = Prompt(
            tokens=self.columns[:, 0],
            codes=self.columns[:, 1:].T if width > 1 else None,
            embeds=request.tensors(data),
            salt=data.salt,
        )


class OmniARModel(nn.Module):
    """See the module. ``config`` is the ``config.json`` that :mod:`omni.engines.sglang.settings` writes."""

    running: ClassVar[OmniARModel]

    def __init__(self, config: Any, quant_config: Any = None, prefix: str = "") -> None:
        super().__init__()
        settings = msgspec.convert(config.omni, ModelSettings)
        source = _source(settings)
        device = torch.empty(0).device  # SGLang builds models under the device of this rank
        # Its defaults are for its layers: a plugin that counts on torch's own must get the same weights everywhere.
        with torch.no_grad(), defaults(torch.device("cpu"), torch.float32):
            self.model: Any = source.build(partial(SGLangStack, quant=quant_config), device=device)
        self._rows = rows = settings.rows + 1  # row 0 is nobody's: padded rows of a captured batch
        self._candidates = settings.candidates
        width = 1 + self.model.codebooks

        def buffer(*shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
            return torch.zeros(*shape, device=device, dtype=dtype)

        self._inputs = buffer(rows, self.model.width, dtype=self.model.dtype)
        self._index = buffer(rows)
        self._seed = buffer(rows)
        self._top_k = buffer(rows)
        self._temperature = buffer(rows, dtype=torch.float32)
        self._top_p = buffer(rows, dtype=torch.float32)
        self._state = self.model.new_state(rows)
        self._columns = buffer(rows, width)
        self._width = width
        self._steps = 0
        OmniARModel.running = self

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Nothing is left to do: the plugin has loaded its weights when the model was built."""

    # The forward pass ---------------------------------------------------------------------------------------

    @torch.no_grad()
    def forward(self, input_ids: Tensor, positions: Tensor, forward_batch: Any, *_: Any, **__: Any) -> Any:
        rows = forward_batch.req_pool_indices.long()
        if forward_batch.forward_mode.is_decode():
            hidden = self.model.forward(self._inputs[rows], positions, forward_batch)
        else:
            # SGLang tunes its kernels with batches of nobody.
            nobody = forward_batch.sampling_info is None
            x = self._inputs.new_zeros(len(positions), self.model.width) if nobody else self._admit(forward_batch)
            last = torch.from_numpy(np.cumsum(forward_batch.extend_seq_lens_cpu) - 1).to(x.device)
            hidden = self.model.forward(x, positions, forward_batch)[last]
        step = Step(
            rows=rows,
            seed=self._seed[rows],
            index=self._index[rows],
            temperature=self._temperature[rows],
            top_p=self._top_p[rows],
            top_k=self._top_k[rows],
            candidates=self._needed(forward_batch) if self._candidates is None else self._candidates,
        )
        result = self.model.step(hidden, step, self._state)
        self._inputs.index_copy_(0, rows, result.embedding.to(self._inputs.dtype))
        self._index.index_copy_(0, rows, step.index + 1)
        self._columns[: len(rows)] = torch.cat((result.tokens.unsqueeze(1), result.codes), 1)
        return adapter.sampled(torch.stack((~result.stop, result.stop), 1).float())

    def _needed(self, forward_batch: Any) -> int:
        """As few candidates as hold every choice of this batch; only without graphs, which fix the number."""
        if forward_batch.sampling_info is None:
            return 0
        found = [self._request(params).params for params in forward_batch.sampling_info.custom_params]
        top_k = [p.top_k for p in found if p.temperature > 0 and p.top_k != 1]
        if not top_k:
            return 1
        return _CANDIDATES if min(top_k) > 0 and max(top_k) <= _CANDIDATES else 0

    # On the host, before: a request enters, is continued, or comes back after a retraction ---------------------

    def _request(self, params: dict[str, Any]) -> _Request:
        found = params.get(_DECODED)
        if found is None:
            found = params[_DECODED] = _Request(request.decode(params[DATA]), self._width)
        assert isinstance(found, _Request)
        return found

    def _admit(self, forward_batch: Any) -> Tensor:
        """Inputs ``(N, width)`` of the positions to be computed. Sets every request's row to where its own columns say
        that it stands."""
        slots = forward_batch.req_pool_indices.tolist()
        if max(slots) >= self._rows:
            raise RuntimeError(f"SGLang uses request slot {max(slots)}, there are {self._rows}")
        device = self._inputs.device
        inputs: list[Tensor] = []
        values: list[tuple[int, int, int]] = []
        filters: list[tuple[float, float]] = []
        every = zip(
            slots,
            forward_batch.sampling_info.custom_params,
            forward_batch.extend_prefix_lens_cpu,
            forward_batch.extend_seq_lens_cpu,
            strict=True,
        )
        for slot, params, start, count in every:
            known = self._request(params)
            done = _generated(params[_REQUEST], self._width)
            columns = np.concatenate((known.columns, done))[start : start + count]
            if len(columns) != count:
                raise RuntimeError(f"SGLang asks for positions {start} to {start + count} of {len(known.columns)}")
            part = torch.from_numpy(columns).to(device)
            inputs.append(
                self.model.embed(PromptSlice(known.prompt, start, start + count, part[:, 0], part[:, 1:].t()))
            )
            past = torch.from_numpy(done).to(device)
            self.model.admit(self._state, slot, known.prompt, known.params, past[:, 0], past[:, 1:].t())
            values.append((len(done), known.seed, known.params.top_k))
            filters.append((known.params.temperature, known.params.top_p))
        rows = torch.tensor(slots, device=device)
        self._index[rows], self._seed[rows], self._top_k[rows] = torch.tensor(values, device=device).unbind(1)
        self._temperature[rows], self._top_p[rows] = torch.tensor(filters, dtype=torch.float32, device=device).unbind(1)
        return torch.cat(inputs).to(self._inputs.dtype)

    # On the host, after -------------------------------------------------------------------------------------

    def deliver(self, requests: Sequence[dict[str, Any]]) -> None:
        """Append the step's column to each request. A step that is computed again replaces what it gave before."""
        self._steps += 1
        columns = self._columns[: len(requests)].tolist()
        for params, column in zip(requests, columns, strict=True):
            found = params[_REQUEST]
            if found.customized_info is None:
                found.customized_info = {COLUMNS: []}
            given = found.customized_info[COLUMNS]
            done = len(found.output_ids)
            if len(given) < done:
                raise RuntimeError(f"request {found.rid} has {done} steps and the columns of {len(given)}")
            given[done:] = [[self._steps, *column]]


_CANDIDATES = 64


def _generated(found: Any, width: int) -> np.ndarray:
    """Columns int64 ``(n, width)`` that a request has generated so far."""
    done = len(found.output_ids)
    if not done:
        return np.zeros((0, width), np.int64)
    return np.array(found.customized_info[COLUMNS][:done], np.int64)[:, 1:]


def _source(settings: ModelSettings) -> ModelSource:
    cls = pkgutil.resolve_name(settings.source)
    found = msgspec.json.decode(settings.fields, type=cls)
    assert isinstance(found, ModelSource)
    return found


class Deliver(adapter.CustomLogitProcessor):  # type: ignore[misc]
    """What SGLang calls for each batch after the forward and before it samples; the logits stay as they are."""

    def __call__(self, logits: Tensor, custom_param_list: list[dict[str, Any]] | None = None) -> Tensor:
        OmniARModel.running.deliver(custom_param_list or [])
        return logits


EntryClass = OmniARModel
