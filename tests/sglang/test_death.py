"""SGLang's processes die: every request is answered at once, with an error that says so."""

from __future__ import annotations

import os
import signal
import time

import psutil
import pytest

from omni.engines.base import SamplingParams
from omni.errors import ConfigError, StageFailed, Unavailable


def is_scheduler(process: psutil.Process) -> bool:
    return "scheduler" in process.name() or "scheduler" in " ".join(process.cmdline())


def test_the_scheduler_is_killed_in_the_middle_of_streams(start, source, tools, golden) -> None:
    engine = start(source, max_total_tokens=4096, max_running_requests=4)
    host = psutil.Process(engine._process.pid)
    family = [host, *host.children(recursive=True)]
    (scheduler,) = [process for process in family if is_scheduler(process)]
    prompt = tools.prompt(golden["prompt.one_ref.0.values"])
    params = SamplingParams(max_new_tokens=900, temperature=0.0)
    sinks = [tools.submit(engine, prompt, params, credit=2 if i == 0 else None) for i in range(8)]
    for sink in sinks[:4]:
        assert sink.begun.wait(tools.patience)
    os.kill(scheduler.pid, signal.SIGKILL)
    begin = time.monotonic()
    for sink in sinks:
        assert sink.ended.wait(5)
    assert time.monotonic() - begin < 3
    for sink in sinks:
        with pytest.raises(StageFailed, match="died"):
            sink.result()
    with pytest.raises(Unavailable, match="died"):
        tools.submit(engine, prompt, params)
    engine.abort(sinks[0].handle)
    assert engine.stats().running == 0
    engine.close()
    assert psutil.wait_procs(family, timeout=5)[1] == []
    engine.close()


def test_what_keeps_it_from_starting_is_said(start, source, tmp_path, ckpt) -> None:
    """An option that SGLang does not have; weights that are not complete, which is met in SGLang's own process."""
    with pytest.raises(ConfigError, match="no option 'mem_fraction_statics'; did you mean mem_fraction_static"):
        start(source, mem_fraction_statics=0.5)
    for file in ckpt.iterdir():
        if "00002-of-00002" not in file.name:
            (tmp_path / file.name).symlink_to(file)
    import msgspec

    with pytest.raises(ConfigError, match=r"WeightsError: cannot read .*model-00002-of-00002"):
        start(msgspec.structs.replace(source, folder=str(tmp_path)))
