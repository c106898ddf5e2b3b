"""Fish Audio S2-Pro: text and reference voices to speech, exact and streaming."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from omni import Recipe, Speech, StageSpec, Weights, hookimpl

if TYPE_CHECKING:
    from fastapi import APIRouter

    from omni.service import Service

_LICENSE = "Fish Audio Research License (non-commercial; commercial use needs a separate licence)"
_ACCESS = (
    f"The weights (11 GB) are under the {_LICENSE}: accept it at https://huggingface.co/fishaudio/s2-pro and set "
    "HF_TOKEN (or run 'hf auth login') first. To try the API without them: --recipe fish-s2-pro-random."
)
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
                access=_ACCESS,
            ),
            stages=_stages(),
            samples="fish_s2pro.samples:samples",
            extra="fish",
        ),
        Recipe(
            name="fish-s2-pro-random",
            summary="The same pipeline with random weights: noise, not speech; for benchmarks and to try the API",
            license="Apache-2.0 (no weights of the model)",
            task=_TASK,
            stages=_stages(ar={"random": "tiny"}, codec={"random_width": 0.125}),
            samples="fish_s2pro.samples:samples",
            extra="fish",
        ),
    ]


@hookimpl
def omni_routes(router: APIRouter, service: Service) -> None:
    """Fish's own API, where one of its recipes is served."""
    own = [recipe.name for recipe in omni_recipes()]
    served = [name for name in service.pipelines if name in own]
    if served:
        from fish_s2pro.api import add_routes

        add_routes(router, service, served)
