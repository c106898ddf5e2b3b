"""Facts about this machine, found without importing anything heavy."""

from __future__ import annotations

import os
import platform
import shutil
import socket
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from omni.memory import memory

GIB = 1 << 30


def facts(host: str, port: int) -> list[tuple[str, str]]:
    """``(name, value)`` lines for ``omni doctor``."""
    return [
        ("python", f"{platform.python_version()} on {platform.system()} {platform.machine()}"),
        ("cores", cores()),
        ("memory", memory_line()),
        ("torch", torch()),
        ("cuda", cuda()),
        ("hub", hub()),
        (f"port {port}", "free" if port_error(host, port) is None else f"busy on {host}: choose another with --port"),
    ]


def cores() -> str:
    """The cores this process may use, and the share of them that a container allows."""
    if hasattr(os, "sched_getaffinity"):
        usable = len(os.sched_getaffinity(0))
    else:
        usable = os.cpu_count() or 1
    quota = _read("/sys/fs/cgroup/cpu.max").split()
    if len(quota) == 2 and quota[0].isdigit():
        return f"{usable} (limited to {int(quota[0]) / int(quota[1]):g} by the container)"
    return str(usable)


def memory_line() -> str:
    """Total and available memory, and the container's limit where that is lower."""
    found = memory()
    text = f"{found.total / GIB:.1f} GiB, {found.available / GIB:.1f} GiB available"
    return text if found.limit is None else text + f" (limited to {found.limit / GIB:.1f} GiB by the container)"


def torch() -> str:
    """The installed torch, by its metadata."""
    try:
        return version("torch")
    except PackageNotFoundError:
        return "not installed (only recipes that say so need it)"


def cuda() -> str:
    """NVIDIA devices as the driver names them, and whether the installed torch could use them."""
    tool = shutil.which("nvidia-smi")
    devices: list[str] = []
    if tool is not None:
        try:
            done = subprocess.run(
                [tool, "--query-gpu=name,memory.total", "--format=csv,noheader"],
                capture_output=True,
                text=True,
                timeout=10,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"nvidia-smi does not answer: {error}"
        if done.returncode == 0:
            devices = [line.strip() for line in done.stdout.splitlines() if line.strip()]
    if not devices:
        return "no NVIDIA device"
    usable = "" if "+cpu" not in torch() else " (the installed torch is a CPU build and cannot use it)"
    return "; ".join(devices) + usable


def hub() -> str:
    """Where Hub weights are kept, how much fits, and whether the Hub may be asked."""
    from huggingface_hub import constants

    cache = Path(constants.HF_HUB_CACHE).expanduser()
    existing = next((folder for folder in (cache, *cache.parents) if folder.is_dir()), None)
    room = f", {shutil.disk_usage(existing).free / GIB:.1f} GiB free" if existing else ""
    return f"{cache}{room}" + (", offline (HF_HUB_OFFLINE)" if constants.HF_HUB_OFFLINE else "")


def port_error(host: str, port: int) -> OSError | None:
    """Why nothing can listen there, or None."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        return error
    return None


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""
