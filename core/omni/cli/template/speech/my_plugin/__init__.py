"""What this plugin brings to omni. Keep it light: it is imported whenever `omni` runs."""

from collections.abc import Sequence

from omni import Recipe, Speech, StageSpec, Voice, hookimpl


@hookimpl
def omni_recipes() -> Sequence[Recipe]:
    return [
        Recipe(
            name="my-plugin",
            summary="Speaks every character as a note",
            license="Apache-2.0",
            task=Speech(
                sample_rate=24_000,
                voices=(Voice("sine"), Voice("square")),
                max_characters=5_000,
                params="my_plugin.params:Params",
            ),
            stages=(
                StageSpec("notes", "my_plugin.stages:Notes", stream=True),
                StageSpec("synth", "my_plugin.stages:Synth", after="notes", stream=True),
            ),
        )
    ]
