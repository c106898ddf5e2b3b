"""What core itself brings, registered through the same hooks as everything else."""

from __future__ import annotations

from collections.abc import Mapping

from omni.hookspecs import hookimpl


@hookimpl
def omni_engines() -> Mapping[str, str]:
    return {"torch": "omni.engines.torch:create_engine", "sglang": "omni.engines.sglang:create_engine"}


@hookimpl
def omni_transports() -> Mapping[str, str]:
    return {
        "inproc": "omni.transports.inproc:InprocTransport",
        "codec": "omni.transports.codec:CodecTransport",
    }


@hookimpl
def omni_executors() -> Mapping[str, str]:
    return {"inprocess": "omni.executors.inprocess:InprocessExecutor"}
