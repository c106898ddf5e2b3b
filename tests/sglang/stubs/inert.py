"""Stand-ins for packages that SGLang imports on any machine and calls only on a GPU, or on CPUs with AMX.

For the tests only: the real ones are large (triton), do not load beside the CPU build of torch (torchvision), or are
published for other CPUs (sgl_kernel). Every submodule can be imported and every name exists. Whatever is called raises,
but for what a module does while it is imported: decorating a function, making a configuration.
"""

from __future__ import annotations

import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import FunctionType, ModuleType
from typing import Any


class NotThere(NotImplementedError):
    """A stand-in was used for real."""


class InertType(type):
    """A class that can be named, subclassed and asked for members, which are such classes again."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        made = InertType(name, (), {"__module__": f"{cls.__module__}.{cls.__name__}"})
        setattr(cls, name, made)
        return made

    def __call__(cls, *_: Any, **__: Any) -> Any:
        raise NotThere(f"{cls.__module__}.{cls.__name__}")


class Kernel:
    """What decorating makes of a function: it can be kept, not launched."""

    def __init__(self, function: Any) -> None:
        self.fn = function
        self.__name__ = getattr(function, "__name__", "kernel")

    def __getitem__(self, grid: Any) -> Any:
        raise NotThere(self.__name__)

    def __call__(self, *_: Any, **__: Any) -> Any:
        raise NotThere(self.__name__)


def decorator(*args: Any, **_: Any) -> Any:
    """``@decorator`` and ``@decorator(...)``."""
    if len(args) == 1 and isinstance(args[0], FunctionType | Kernel):
        return Kernel(args[0])
    return Kernel


class InertModule(ModuleType):
    __path__ = ()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        made = InertType(name, (), {"__module__": self.__name__})
        setattr(self, name, made)
        return made


class _Finder(MetaPathFinder, Loader):
    """Finds every submodule of one package."""

    def __init__(self, package: str) -> None:
        self._prefix = package + "."

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        return ModuleSpec(fullname, self, is_package=True) if fullname.startswith(self._prefix) else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return InertModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


def install(package: str) -> None:
    """Make the package that is being imported inert, but for the names that it has defined."""
    sys.meta_path.insert(0, _Finder(package))
    sys.modules[package].__class__ = InertModule
