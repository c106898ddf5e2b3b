"""Finding, loading and refusing plugins."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import EntryPoint
from typing import Any

import click
import pytest
from fastapi import APIRouter, FastAPI
from fastapi.testclient import TestClient

from omni import ConfigError, MissingDependency
from omni.errors import ModelNotFound
from omni.plugins import Plugins, import_path

RECIPE = """
from omni import Recipe, Speech, StageSpec, hookimpl

def one(name):
    return Recipe(name=name, summary="-", license="-", task=Speech(sample_rate=8000), stages=[StageSpec("a", "m:C")])

@hookimpl
def omni_recipes():
    return [{recipes}]
"""

Load = Callable[..., Plugins]
Module = Callable[[str, str], None]


@pytest.fixture
def load(module: Module) -> Load:
    """Makes modules of the given sources and loads them as installed plugins of the same name."""

    def make(**sources: str) -> Plugins:
        for name, source in sources.items():
            module(name, source)
        return Plugins.load([EntryPoint(name, name, "omni") for name in sources])

    return make


def recipes(*names: str) -> str:
    return RECIPE.format(recipes=", ".join(f"one({name!r})" for name in names))


def errors(plugins: Plugins) -> dict[str, str | None]:
    return {plugin.name: plugin.error for plugin in plugins.plugins}


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("import nowhere_to_be_found", "ModuleNotFoundError"),
        ("1 / 0", "ZeroDivisionError"),
        ("def broken(:", "SyntaxError"),
        ("raise SystemExit(3)", "SystemExit"),
        ("from omni import hookimpl\n@hookimpl\ndef omni_recipes(): raise OSError('no disk')", "no disk"),
        ("from omni import hookimpl\n@hookimpl\ndef omni_recipes(): return ['fish']", "gave str, not Recipe"),
        ("from omni import hookimpl\n@hookimpl\ndef omni_receipts(): return []", "unknown hook 'omni_receipts'"),
        ("from omni import hookimpl\n@hookimpl\ndef omni_recipes(cheese): return []", "cheese"),
        ("def omni_recipes(): return []", "not decorated with @hookimpl"),
        ("from omni import hookimpl\n@hookimpl\ndef omni_engines(): return 3", "'int' object has no attribute"),
        (recipes("bad name"), "should match pattern"),
    ],
)
def test_a_plugin_that_fails_is_named_with_its_traceback_and_the_others_stay(
    load: Load, source: str, words: str
) -> None:
    plugins = load(aaa=recipes("first"), broken=source, zzz=recipes("last"))
    found = errors(plugins)
    assert found["aaa"] is None
    assert found["zzz"] is None
    broken = found["broken"]
    assert broken is not None
    assert broken.startswith("Traceback")
    assert words in broken
    assert list(plugins.recipes) == ["first", "last"]
    assert plugins.owner("last") == "zzz"


def test_a_failed_plugin_adds_nothing_at_all(load: Load) -> None:
    half = recipes("half") + "\n@hookimpl\ndef omni_engines(): return {'torch': 'half:other'}\n"
    half += "@hookimpl\ndef omni_commands(cli): raise AssertionError('it was left out')\n"
    plugins = load(half=half)
    assert "two with the name 'torch' (engine)" in str(errors(plugins)["half"])
    assert plugins.recipes == {}
    assert plugins.engines() == Plugins.load([]).engines()
    plugins.add_commands(click.Group())
    assert "left out" not in str(errors(plugins)["half"])


@pytest.mark.parametrize("second", [recipes("same"), recipes("other", "other")], ids=["two plugins", "one plugin"])
def test_a_recipe_is_declared_once(load: Load, second: str) -> None:
    plugins = load(one=recipes("same"), two=second)
    assert "is already declared by" in str(errors(plugins)["two"])
    assert list(plugins.recipes) == ["same"]
    assert plugins.owner("same") == "one"


def test_a_name_is_registered_once(load: Load) -> None:
    plugins = load(one=recipes("a"))
    plugins.add("one", lambda: pytest)
    assert [plugin.error is None for plugin in plugins.plugins] == [True, False]
    assert "already registered" in str(plugins.plugins[1].error)
    assert list(plugins.recipes) == ["a"]


def test_engines_transports_and_executors_of_plugins_stand_beside_those_of_core(load: Load) -> None:
    source = "from omni import hookimpl\n"
    for hook in ("engines", "transports", "executors"):
        source += f"@hookimpl\ndef omni_{hook}(): return {{'mine': 'mine:{hook}'}}\n"
    plugins = load(mine=source)
    assert errors(plugins) == {"mine": None}
    assert plugins.engines()["mine"] == "mine:engines"
    assert {"inproc", "codec", "mine"} <= plugins.transports().keys()
    assert {"inprocess", "mine"} <= plugins.executors().keys()


def test_plugins_say_where_they_come_from() -> None:
    by_name = {plugin.name: plugin for plugin in Plugins.load().plugins}
    assert by_name, "the project's own plugins are installed"
    for plugin in by_name.values():
        assert plugin.distribution == "omni-recipes"
        assert plugin.version
        assert plugin.error is None, plugin.error


def test_an_unknown_recipe_lists_what_there_is(load: Load) -> None:
    plugins = load(one=recipes("b", "a"))
    assert plugins.recipe("a").name == "a"
    with pytest.raises(ModelNotFound, match="no recipe 'c'; there are: a, b"):
        plugins.recipe("c")


def test_a_recipe_is_found_by_an_alias(load: Load) -> None:
    named = RECIPE.format(recipes="one('a').model_copy(update={'aliases': ('x', 'b', 'y')}), one('b')")
    more = RECIPE.format(recipes="one('c').model_copy(update={'aliases': ('y',)})")
    plugins = load(one=named, two=more)
    assert plugins.recipe("x").name == "a"
    assert plugins.recipe("b").name == "b", "a name comes before an alias"
    with pytest.raises(ConfigError, match="several recipes are called 'y': a, c"):
        plugins.recipe("y")


COMMAND = """
import click
from omni import hookimpl

@hookimpl
def omni_commands(cli):
    @cli.command()
    def {name}():
        pass
    {after}
"""


def test_commands_of_a_plugin_that_fails_or_takes_a_name_are_left_out(load: Load) -> None:
    plugins = load(
        broken=COMMAND.format(name="half", after="raise RuntimeError('no')"),
        good=COMMAND.format(name="dance", after=""),
        greedy=COMMAND.format(name="launch", after=""),
    )
    cli = click.Group(commands={"launch": click.Command("launch")})
    launch = cli.commands["launch"]
    plugins.add_commands(cli)
    assert cli.commands.keys() == {"launch", "dance"}
    assert cli.commands["launch"] is launch
    found = errors(plugins)
    assert found["good"] is None
    assert "RuntimeError: no" in str(found["broken"])
    assert "'launch' exists already" in str(found["greedy"])


ROUTE = """
from omni import hookimpl

@hookimpl
def omni_routes(router, service):
    @router.get("/{name}")
    def endpoint():
        return str(service)
    {after}
"""


def test_routes_of_a_plugin_that_fails_are_left_out(load: Load) -> None:
    plugins = load(
        broken=ROUTE.format(name="half", after="1 / 0"),
        good=ROUTE.format(name="whole", after=""),
    )
    router = APIRouter()
    service: Any = "the service"
    plugins.add_routes(router, service)
    app = FastAPI()
    app.include_router(router)
    client = TestClient(app)
    assert client.get("/whole").json() == "the service"
    assert client.get("/half").status_code == 404
    assert "ZeroDivisionError" in str(errors(plugins)["broken"])
    assert errors(plugins)["good"] is None


def test_import_path(module: Module) -> None:
    module("needy", "import rare_package_of_the_test")
    module("buggy", "raise OSError('libcuda.so.1: no such file')")
    assert import_path("os.path:join", "x") is __import__("os").path.join
    assert import_path("collections:OrderedDict.fromkeys", "x")([1]) == {1: None}
    with pytest.raises(
        MissingDependency, match="the engine: 'needy:thing' needs the package 'rare_package_of_the_test'"
    ):
        import_path("needy:thing", "the engine")
    with pytest.raises(ConfigError, match="the engine: there is no module 'nowhere'") as caught:
        import_path("nowhere:thing", "the engine")
    assert not isinstance(caught.value, MissingDependency)
    with pytest.raises(ConfigError, match=r"there is no module 'os\.nowhere'"):
        import_path("os.nowhere:thing", "the engine")
    with pytest.raises(ConfigError, match="module 'os' has no 'nothing'"):
        import_path("os:nothing", "the engine")
    with pytest.raises(ConfigError, match="the engine: module 'buggy' cannot be imported: OSError: libcuda"):
        import_path("buggy:thing", "the engine")
