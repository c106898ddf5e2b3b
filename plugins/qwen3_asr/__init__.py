"""Qwen3-ASR: speech recognition in 30 languages, with times by its forced aligner."""

from __future__ import annotations

from typing import Any

from omni import Recipe, StageSpec, Transcription, Weights, hookimpl
from qwen3_asr.languages import ALIGNED, NAMES

_LICENSE = "Apache-2.0"
_FILES = ("*.json", "merges.txt", "*.safetensors")
_SIZES = {"0.6b": "Qwen/Qwen3-ASR-0.6B", "1.7b": "Qwen/Qwen3-ASR-1.7B"}
_TIMES = "-timestamps"
_ALIGNER = Weights("Qwen/Qwen3-ForcedAligner-0.6B", allow=_FILES)


def _stages(
    *, times: bool = False, aligner_weights: Weights | None = None, **options: dict[str, Any]
) -> tuple[StageSpec, ...]:
    """``options`` by stage."""

    def stage(name: str, cls: str, after: tuple[str, ...] = (), **fields: Any) -> StageSpec:
        return StageSpec(name, f"qwen3_asr.{cls}", after=after, options=options.get(name, {}), **fields)

    return (
        stage("audio", "audio:Audio", stream=True, paced_by="aligner" if times else "ar"),
        stage("spans", "transcript:Outline", ("audio",)),
        stage("encoder", "stages:AudioEncoderStage", ("audio",)),
        stage("ar", "stages:Recogniser", ("spans", "encoder"), stream=True),
        *(
            (
                stage("texts", "transcript:WrittenSpans", ("ar",)),
                stage("aligner", "alignment:AlignerStage", ("audio", "texts"), weights=aligner_weights),
            )
            if times
            else ()
        ),
        stage("transcript", "transcript:Transcript", ("ar", "aligner") if times else ("ar",), stream=True),
    )


def _task(*, times: bool = False) -> Transcription:
    return Transcription(
        languages=tuple(NAMES),
        timestamps=("segment", "word") if times else (),
        timestamp_languages=ALIGNED if times else None,
        prompt=True,
        temperature=True,
        seed=True,
        params="qwen3_asr.params:Params",
        live="qwen3_asr.live:open_live",
    )


def _recipe(size: str, repo: str, *, times: bool) -> Recipe:
    name = f"qwen3-asr-{size}"
    return Recipe(
        name=name + _TIMES if times else name,
        summary=f"Speech recognition in 30 languages, {size.upper()}" + (", with times of words" if times else ""),
        license=_LICENSE,
        aliases=_timed_aliases(size) if times else (repo, repo.partition("/")[2]),
        variants=() if times else (name + _TIMES,),
        task=_task(times=times),
        weights=Weights(repo, allow=_FILES),
        stages=_stages(times=times, aligner_weights=_ALIGNER),
        samples="qwen3_asr.samples:samples",
        extra="qwen",
    )


def _timed_aliases(size: str) -> tuple[str, ...]:
    """The smallest is what one gets who names no size."""
    return ("qwen3-asr" + _TIMES,) if size == next(iter(_SIZES)) else ()


def _random(*, times: bool) -> Recipe:
    name, random = "qwen3-asr-random", {"random": "tiny"}
    return Recipe(
        name=name + _TIMES if times else name,
        summary="The same pipeline with random weights: letters without meaning; for benchmarks and to try the API",
        license="Apache-2.0 (no weights of the model)",
        variants=() if times else (name + _TIMES,),
        task=_task(times=times),
        stages=_stages(times=times, encoder=random, ar=random, aligner=random),
        samples="qwen3_asr.samples:timed_noise" if times else "qwen3_asr.samples:noise",
        extra="qwen",
    )


@hookimpl
def omni_recipes() -> list[Recipe]:
    return [
        *(_recipe(size, repo, times=times) for size, repo in _SIZES.items() for times in (False, True)),
        *(_random(times=times) for times in (False, True)),
    ]
