"""Every declared parameter has an effect or is refused; a seed repeats."""

from __future__ import annotations

from omni.plugins import params_model
from omni.testing.checks.base import check
from omni.testing.kit import Kit, NotApplicable, fail, shown, spoken
from omni.testing.parameters import accepts, declared_fields, illegal, limits, properties, with_value
from omni.testing.samples import Effect


@check("a request repeats, also after a restart; with the same seed where the recipe takes one")
async def a_request_repeats(kit: Kit) -> None:
    await kit.outputs()
    once = [await kit.solo(request, kit.uncached()) for request in kit.requests[:2]]
    for restart in (False, True):
        pipeline = await kit.pipeline(kit.uncached(), anew=restart)
        for i in (1, 0, 0):
            again = await kit.outcome(kit.requests[i], pipeline)
            if (what := kit.difference(again, once[i])) is not None:
                seed = "and its seed " if kit.recipe.task.seed else ""
                when = "after a restart" if restart else "a second time"
                fail(f"sample {i}, run {when} with the same fields {seed}gave {what}")


@check("every declared parameter changes the output, and every legal value of it works")
async def parameters_have_an_effect(kit: Kit) -> None:
    fields = declared_fields(kit.recipe)
    tried = [name for name in fields if name not in kit.samples.exempt]
    if not tried:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in kit.samples.exempt.items())
        raise NotApplicable(f"no parameter to try ({reasons or 'the recipe declares none that can vary'})")
    first, *_ = kit.requests
    again = await kit.outcome(first, await kit.pipeline())
    if (what := kit.difference(again, await kit.output(first))) is not None:
        fail(f"outputs differ by themselves, so no parameter can be seen to have an effect: {what}")
    for name in tried:
        await _has_effect(kit, name, kit.samples.effects.get(name) or Effect(fields[name]))


async def _has_effect(kit: Kit, name: str, effect: Effect) -> None:
    if len(effect.values) < 2:
        fail(f"parameter {name!r}: no two legal values could be made up; give two in samples.effects[{name!r}]")
    base = effect.request or kit.requests[0]
    outputs = []
    for value in effect.values:
        request = with_value(kit.recipe, base, name, value)
        outputs.append(spoken(request, await kit.solo(request)))
    if name in properties(kit.recipe):
        outputs.append(await kit.output(base))
    if all(kit.difference(outputs[0], output) is None for output in outputs[1:]):
        fail(f"parameter {name!r} has no effect: {list(effect.values)} give the same output ({shown(base)})")
    if name == "speed" and outputs[0].audible_seconds() <= outputs[-1].audible_seconds():
        fail(f"speed {effect.values[0]} sounds no longer than speed {effect.values[-1]} ({shown(base)})")
    if name != "voice":
        return
    for i, output in enumerate(outputs):
        for j in range(i):
            if kit.difference(output, outputs[j]) is None:
                fail(f"the voices {effect.values[j]!r} and {effect.values[i]!r} are the same")


@check(
    "the recipe's parameter model refuses what is outside of a declared range, by the field's name, and extra fields"
)
async def parameters_are_bounded(kit: Kit) -> None:
    recipe = kit.recipe
    if params_model(recipe) is None:
        raise NotApplicable("the recipe has no parameter model of its own")
    if accepts(recipe, {"no_such_field_": 1}) != "no_such_field_":
        fail("the parameter model ignores fields that it does not have: give it extra='forbid'")
    for name, schema in properties(recipe).items():
        if schema.get("type") in ("integer", "number") and "enum" not in schema and None in limits(schema):
            fail(f"parameter {name!r} has no lower or no upper bound: declare both (ge, le)")
        for value, limit in illegal(schema):
            blamed = accepts(recipe, {name: value})
            if blamed is None:
                fail(f"parameter {name!r} must be {limit}, and {value!r} is accepted")
            if blamed != name:
                fail(f"parameter {name!r} must be {limit}; {value!r} is refused, but the error names {blamed!r}")


PARAMETERS = (a_request_repeats, parameters_have_an_effect, parameters_are_bounded)
