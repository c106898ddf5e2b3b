"""SGLang's processes die: every request is answered at once, with an error that says so."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import psutil
import pytest

from omni.engines.base import SamplingParams
from omni.engines.sglang import create_engine
from omni.errors import ConfigError, StageFailed, Unavailable


def is_scheduler(process: psutil.Process) -> bool:
    return "scheduler" in process.name() or "scheduler" in " ".join(process.cmdline())


def test_the_scheduler_is_killed_in_the_middle_of_streams(start, source, tools, golden) -> None:
    engine = start(source, max_total_tokens=4096, max_running_requests=4)
    assert engine.down is None
    with pytest.raises(RuntimeError, match="started once"):
        engine.start()
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
    assert "died" in engine.down
    engine.abort(sinks[0].handle)
    assert engine.stats().running == 0
    engine.close()
    assert psutil.wait_procs(family, timeout=5)[1] == []
    engine.close()


def test_what_keeps_it_from_starting_is_said(start, source, tmp_path, ckpt) -> None:
    """Options that SGLang does not have or takes otherwise; weights that are not complete, which is met in SGLang's own
    process."""
    with pytest.raises(ConfigError) as error:
        start(source, mem_fraction_statics=0.5, page_size="many", attention_backend="quick")
    for words in (
        "no option 'mem_fraction_statics'; did you mean mem_fraction_static",
        "page_size: Expected `int | null`, got `str`",
        "attention_backend must be one of triton, ",
    ):
        assert words in error.value.message
    for file in ckpt.iterdir():
        if "00002-of-00002" not in file.name:
            (tmp_path / file.name).symlink_to(file)
    engine = create_engine(msgspec.structs.replace(source, folder=str(tmp_path)), {})
    with pytest.raises(ConfigError, match=r"WeightsError: cannot read .*model-00002-of-00002"):
        engine.start()
    engine.close()
    left = [engine._folder.name, *engine._process.leftovers]
    assert len(left) > 3
    assert not [file for file in left if Path(file).exists()]


SERVER = """
import signal, sys
from fish_s2pro.source import DualARSource
from omni.engines.sglang import create_engine
source = DualARSource(device="cpu", dtype="float32", folder=sys.argv[1])
engine = create_engine(source, {"max_total_tokens": 1024, "max_running_requests": 2})
engine.start()
print(engine._folder.name, *engine._process.leftovers, flush=True)
signal.pause()
"""


def test_nothing_outlives_a_server_that_is_killed(ckpt) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, "-c", SERVER, str(ckpt)], stdout=subprocess.PIPE, env=environment) as server:
        files = [Path(name) for name in server.stdout.readline().decode().split()]
        family = psutil.Process(server.pid).children(recursive=True)
        assert any(map(is_scheduler, family))
        assert files
        assert all(file.exists() for file in files)
        server.kill()
    deadline = time.monotonic() + 10
    while left := [process for process in family if lives(process)] + [file for file in files if file.exists()]:
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


def lives(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
