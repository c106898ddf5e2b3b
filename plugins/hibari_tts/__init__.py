"""English speech on a laptop CPU: a 6 M parameter acoustic model that ships in its own wheel."""

from __future__ import annotations

from omni import Recipe, Speech, StageSpec, Voice, hookimpl

SAMPLE_RATE = 24_000
SPEEDS = (0.5, 2.0)
VOICE = "heart"


@hookimpl
def omni_recipes() -> list[Recipe]:
    return [
        Recipe(
            name="hibari-tts",
            summary="English text to speech, one voice, far faster than real time on one CPU core",
            license="Apache-2.0",
            task=Speech(
                sample_rate=SAMPLE_RATE,
                voices=(Voice(VOICE, name="Heart", language="en"),),
                languages=("en",),
                seed=True,
                native_speed=SPEEDS,
            ),
            stages=(
                StageSpec("text", "hibari_tts.stages:Text", stream=True),
                StageSpec("synthesis", "hibari_tts.stages:Synthesis", after="text", stream=True),
                StageSpec("join", "hibari_tts.stages:Join", after="synthesis", stream=True),
            ),
            requires=("hibari-tts==0.2.1",),
            extra="demo",
            default=True,
            samples="hibari_tts.samples:samples",
        )
    ]
