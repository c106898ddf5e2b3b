"""What this plugin brings to omni. Keep it light: it is imported whenever `omni` runs."""

from collections.abc import Sequence

from omni import Recipe, StageSpec, Transcription, hookimpl


@hookimpl
def omni_recipes() -> Sequence[Recipe]:
    return [
        Recipe(
            name="my-plugin",
            summary="Writes down the notes that it hears",
            license="Apache-2.0",
            task=Transcription(
                languages=("en",),
                timestamps=("segment",),
                max_seconds=3600.0,
                params="my_plugin.params:Params",
            ),
            stages=(
                StageSpec("audio", "my_plugin.stages:Audio", stream=True),
                StageSpec("hear", "my_plugin.stages:Hear", after="audio"),
                StageSpec("write", "my_plugin.stages:Write", after="hear", stream=True),
            ),
            samples="my_plugin.samples:samples",
        )
    ]
