"""How long it takes until omni is there: to import, to list, to serve.

Each number is the median of several fresh processes on this machine; the processor time is steadier than the time on
the clock when something else runs beside. Limits: import and list 0.5 s, ready 6 s.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

from serving import launched

LIMITS = {"import omni": 0.5, "omni --help": 0.5, "omni recipes": 0.5, "omni launch to /ready": 6.0}


def command(*args: str) -> Callable[[], float]:
    def seconds() -> float:
        start = time.perf_counter()
        subprocess.run([sys.executable, *args], check=True, stdout=subprocess.DEVNULL)
        return time.perf_counter() - start

    return seconds


def to_ready() -> float:
    start = time.perf_counter()
    with launched():
        return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=5)
    repeat = parser.parse_args().repeat
    measured = {
        "python -c pass": command("-c", "pass"),
        "import omni": command("-c", "import omni"),
        "omni --help": command("-m", "omni", "--help"),
        "omni recipes": command("-m", "omni", "recipes"),
        "omni launch to /ready": to_ready,
    }
    print(f"{'what':24}{'median s':>10}{'min s':>8}{'cpu s':>8}{'limit s':>9}")
    for name, measure in measured.items():
        times, cpu = zip(*(with_cpu(measure) for _ in range(repeat)), strict=True)
        limit = LIMITS.get(name)
        bound = "" if limit is None else f"{limit:9.1f}"
        print(f"{name:24}{statistics.median(times):10.3f}{min(times):8.3f}{statistics.median(cpu):8.3f}{bound}")


def with_cpu(measure: Callable[[], float]) -> tuple[float, float]:
    """Seconds on the clock, and processor seconds of the process until it ended."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = measure()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    main()
