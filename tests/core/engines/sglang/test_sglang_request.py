"""What SGLang gets to see of a request. Needs no SGLang."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from omni.engines.base import Prompt, SamplingParams
from omni.engines.inputs import columns_of
from omni.engines.sglang import request

KEY = b"k" * 32


def ids(tokens, codes=None, key: bytes = KEY, unique: int = 0) -> list[int]:
    prompt = Prompt(tokens=np.array(tokens), codes=None if codes is None else np.array(codes))
    return ids_of(prompt, key, unique)


def ids_of(prompt: Prompt, key: bytes = KEY, unique: int = 0) -> list[int]:
    columns = columns_of(prompt, 0 if prompt.codes is None else len(prompt.codes))
    return request.prefix_ids(prompt, columns, key, unique).tolist()


def test_ids_are_equal_as_far_as_columns_are() -> None:
    one = ids([5, 6, 7, 8], [[1, 2, 3, 4], [0, 0, 0, 0]])
    two = ids([5, 6, 7, 8], [[1, 2, 3, 4], [0, 0, 9, 0]])
    assert one[:2] == two[:2]
    assert one[2] != two[2]
    assert len(set(one)) == 4
    assert all(0 <= i < 1 << 63 for i in one)


def test_the_last_position_is_each_requests_own() -> None:
    assert ids([5, 5, 5], unique=1)[:2] == ids([5, 5, 5], unique=2)[:2]
    seen = {ids([5, 5, 5], unique=n)[-1] for n in range(100)}
    assert len(seen) == 100
    assert min(seen) > max(ids([5] * 50)[:-1])
    # Nobody else's position has such an id, wherever it is.
    assert not seen & set(ids(range(1000), unique=5000))


def test_ids_cannot_be_made_without_the_engines_key() -> None:
    assert ids([5, 6])[0] != ids([5, 6], key=b"x" * 32)[0]


def test_salt_and_embeddings_count_after_what_is_plain() -> None:
    audio = np.ones((3, 4), np.float32)
    different: list[dict] = [
        {},
        {"salt": b"a"},
        {"embeds": {"audio": audio}},
        {"embeds": {"audio": audio * 2}},
        {"embeds": {"sound": audio}},
        {"embeds": {"audio": audio.reshape(4, 3)}},
        {"embeds": {"audio": audio.view(np.int32)}},
    ]
    found = [ids_of(Prompt(tokens=[1, 2, 3, 4], plain=2, **more)) for more in different]
    assert len({tuple(ids[:2]) for ids in found}) == 1
    assert len({ids[2] for ids in found}) == len(different)
    everywhere = [ids_of(Prompt(tokens=[1, 2, 3, 4], **more)) for more in different]
    assert len({ids[0] for ids in everywhere}) == len(different)
    torch_made = Prompt(tokens=[1, 2, 3, 4], plain=2, embeds={"audio": torch.ones(3, 4)})
    assert ids_of(torch_made) == found[2]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int64])
def test_a_request_survives_the_way(dtype) -> None:
    params = SamplingParams(max_new_tokens=3, top_k=7, extra={"style": ["calm", 1]})
    tensor = torch.arange(12).view(3, 4).to(dtype)
    prompt = Prompt(tokens=[1, 2], codes=[[3, 4], [5, 6]], embeds={"a": tensor}, salt=b"\x00\xff")
    columns = columns_of(prompt, 2)
    text = request.encode(prompt, columns, params, -5)
    assert json.loads(json.dumps(text)) == text
    found = request.decode(text)
    assert np.frombuffer(found.columns, np.int64).reshape(-1, 3).tolist() == [[1, 3, 5], [2, 4, 6]]
    assert (found.params, found.seed, found.salt) == (params, -5, b"\x00\xff")
    back = request.tensors(found)["a"]
    assert back.dtype == dtype
    assert torch.equal(back, tensor)


def test_numpy_embeddings_keep_their_type() -> None:
    array = np.linspace(0, 1, 6, dtype=np.float16).reshape(2, 3)
    prompt = Prompt(tokens=[1], embeds={"a": array})
    found = request.decode(request.encode(prompt, columns_of(prompt, 0), SamplingParams(max_new_tokens=1), 0))
    assert np.array_equal(request.tensors(found)["a"].numpy(), array)
