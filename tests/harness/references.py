"""Functions sent to a worker by name instead of by value, and how the worker finds them again.

A test module has no name that a fresh process could import reliably (it depends on pytest's import
mode), so the path of its file travels along.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

try:  # pytest's own rewriting of asserts, private but old; plain asserts are the fallback
    from _pytest.assertion.rewrite import rewrite_asserts
except ImportError:  # pragma: no cover
    rewrite_asserts = None  # type: ignore[assignment]


@dataclass(frozen=True)
class FunctionReference:
    """A module-level function: where its module's file is, the module's name, its own name."""

    path: str
    module: str
    qualname: str

    @classmethod
    def of(cls, function: Callable[..., Any]) -> FunctionReference:
        """Refer to a function.

        Raises
        ------
        TypeError
            If a worker couldn't find it: a lambda, a closure, a partial, a bound method.
        """
        module = sys.modules.get(getattr(function, "__module__", None) or "")
        qualname = getattr(function, "__qualname__", "")
        file = getattr(module, "__file__", None)
        if not qualname or "<" in qualname or module is None or file is None:
            raise TypeError(
                f"A worker finds its function by name, so it must be defined at the top level of a "
                f"module in a file. Got {function!r}: move it there and hand over what it closed "
                f"over as arguments."
            )
        reference = cls(str(Path(file).resolve()), module.__name__, qualname)
        if reference.look_up(module) != function:
            raise TypeError(
                f"{module.__name__}.{qualname} is not the function that was given, {function!r}: "
                f"give each function sent to the workers a name of its own."
            )
        return reference

    def look_up(self, module: ModuleType) -> Any:
        """Follow the dotted name inside ``module``; None where it leads nowhere."""
        found: Any = module
        for name in self.qualname.split("."):
            found = getattr(found, name, None)
        return found

    def resolve(self) -> Callable[..., Any]:
        """Load the module, if this process hasn't yet or its file has changed; get the function.

        The module goes by the same name as in the sending process, so that instances of classes
        defined in it can be pickled both ways.
        """
        function = self.look_up(_load(self.path, self.module))
        if function is None:
            raise AttributeError(f"{self.path} has no function {self.qualname!r}.")
        return function  # type: ignore[no-any-return]


_loaded: dict[str, tuple[int, ModuleType]] = {}


def _load(path: str, name: str) -> ModuleType:
    changed = Path(path).stat().st_mtime_ns
    if path in _loaded and _loaded[path][0] == changed:
        return _loaded[path][1]
    present = sys.modules.get(name)
    if path not in _loaded and present is not None and _is_file_of(present, path):
        module = present
    else:
        module = _execute(path, name)
    _loaded[path] = (changed, module)
    return module


def _is_file_of(module: ModuleType, path: str) -> bool:
    file = getattr(module, "__file__", None)
    return file is not None and str(Path(file).resolve()) == path


def _execute(path: str, name: str) -> ModuleType:
    parent = name.rpartition(".")[0]
    if parent:
        # Importlib mode may invent parents; only relative imports need them.
        with contextlib.suppress(ImportError):
            importlib.import_module(parent)
    spec = importlib.util.spec_from_file_location(name, path, loader=_AssertingLoader(name, path))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(name, None)
        raise
    return module


class _AssertingLoader(importlib.machinery.SourceFileLoader):
    """Loads a module as pytest would: a failing ``assert`` says what the values were."""

    def get_code(self, fullname: str) -> CodeType | None:
        # Past the bytecode cache: it holds code without rewritten asserts and should stay so.
        source = self.get_data(self.path)
        tree = ast.parse(source, filename=self.path)
        if rewrite_asserts is not None:
            rewrite_asserts(tree, source, self.path)
        return compile(tree, self.path, "exec", dont_inherit=True)
