"""How loading shows on a terminal and elsewhere."""

from __future__ import annotations

import io

from omni.cli.progress import Bars, Lines

EVENTS = [
    ("r", "weights", "locating"),
    ("r", "weights", "ready"),
    ("r", "a", "loading"),
    ("r", "b", "loading"),
    ("r", "b", "ready"),
    ("r", "a", "ready"),
]


def test_lines() -> None:
    file = io.StringIO()
    lines = Lines(file)
    for event in EVENTS:
        lines(*event)
    written = [line.partition("] ")[2] for line in file.getvalue().splitlines()]
    assert written == [": ".join(event) for event in EVENTS]


def test_bar_is_there_only_while_stages_load(capsys) -> None:
    bars = Bars({"r": 2})
    drawn = []
    for event in EVENTS:
        bars(*event)
        drawn.append(bars._bar is not None)
    assert drawn == [False, False, True, True, True, False]
    assert "2/2" in capsys.readouterr().err


def test_bar_is_closed_after_a_failure() -> None:
    bars = Bars({"r": 2})
    bars("r", "a", "loading")
    bars.close()
    bars.close()
    assert bars._bar is None


def test_bar_names_what_still_loads() -> None:
    bars = Bars({"r": 2})
    for event in EVENTS[:5]:
        bars(*event)
    assert bars._bar is not None
    progress, task = bars._bar
    assert progress.tasks[task].fields["stage"] == "a"
    bars.close()
