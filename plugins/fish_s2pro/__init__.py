"""Fish Audio S2-Pro: text and reference voices to speech, exact and streaming."""

from __future__ import annotations

from typing import Any

from omni import Recipe, Speech, StageSpec, Weights, hookimpl

_LICENSE = "Fish Audio Research License (non-commercial; commercial use needs a separate licence)"
_TASK = Speech(
    sample_rate=44_100,
    voices=("default",),
    cloning=True,
    seed=True,
    params="fish_s2pro.params:SpeechParams",
    stream_tolerance=2e-4,
)


def _stages(ar: dict[str, Any] | None = None, codec: dict[str, Any] | None = None) -> tuple[StageSpec, ...]:
    return (
        StageSpec("preprocess", "fish_s2pro.stages:Prepare", stream=True),
        StageSpec("reference", "fish_s2pro.reference:ReferenceEncoder", after="preprocess", options=codec or {}),
        StageSpec("collect", "fish_s2pro.reference:CollectReferences", after="reference"),
        StageSpec("ar", "fish_s2pro.stages:DualARStage", after="collect", stream=True, options=ar or {}),
        StageSpec("vocoder", "fish_s2pro.vocoder:Vocoder", after="ar", stream=True, options=codec or {}),
    )


@hookimpl
def omni_recipes() -> list[Recipe]:
    return [
        Recipe(
            name="fish-s2-pro",
            summary="Expressive speech in 80 languages with voice cloning, 44.1 kHz, streaming frame by frame",
            license=_LICENSE,
            aliases=("fishaudio/s2-pro", "s2-pro"),
            task=_TASK,
            weights=Weights(
                "fishaudio/s2-pro",
                allow=("*.json", "*.safetensors", "codec.pth"),
                access=f"The weights are under the {_LICENSE}; the repository asks you to accept it.",
            ),
            stages=_stages(),
            extra="fish",
        ),
        Recipe(
            name="fish-s2-pro-random",
            summary="The same pipeline with random weights: noise, not speech; for benchmarks and to try the API",
            license="Apache-2.0 (no weights of the model)",
            task=_TASK,
            stages=_stages(ar={"random": "tiny"}, codec={"random_width": 0.125}),
            extra="fish",
        ),
    ]
