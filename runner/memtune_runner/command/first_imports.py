"""The imports of libraries with which a script begins, carried out before the script runs.

They end at the first statement that is neither an import nor a definition, because an import behind it may depend on
what it does. A module of the user's own is not imported: its first imports are, and those behind it if it only defines.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import resolve_name
from pathlib import Path

from memtune_runner.command.command import Kind
from memtune_runner.command.run_target import put_first
from memtune_runner.rank.user_code import is_library_file


def carry_out(kind: Kind, target: str) -> None:
    """Import what a script or module imports first. An import that fails raises its exception."""
    first = str(Path(target).resolve().parent if kind is Kind.SCRIPT else Path.cwd())
    put_first(first)
    imports = _FirstImports()
    if kind is Kind.SCRIPT:
        imports.of_file(Path(target), "")
    else:
        imports.of_main_module(target)
    if sys.path[0] == first:
        del sys.path[0]  # the script puts it there again


class _FirstImports:
    """Each method returns whether nothing else happened, so that imports behind it may be carried out as well."""

    def __init__(self) -> None:
        self._seen: set[str] = set()

    def of_main_module(self, name: str) -> bool:
        specs = list(_specs(name))
        if specs and specs[-1].submodule_search_locations is not None:
            name = f"{name}.__main__"
            specs = list(_specs(name))
        package, _, _ = name.rpartition(".")
        if len(specs) <= name.count(".") or not specs[-1].origin:
            return False
        return (not package or self._of_name(package, f"import {package}", "")) and self.of_file(
            Path(specs[-1].origin), package
        )

    def of_file(self, file: Path, package: str) -> bool:
        if str(file) in self._seen:
            return True
        self._seen.add(str(file))
        return file.suffix == ".py" and all(self._of(each, package) for each in ast.parse(file.read_bytes()).body)

    def _of(self, statement: ast.stmt, package: str) -> bool:
        if isinstance(statement, ast.Import):
            return all(self._of_name(each.name, f"import {each.name}", package) for each in statement.names)
        if isinstance(statement, ast.ImportFrom):
            module = resolve_name("." * statement.level + (statement.module or ""), package)
            names = ", ".join(each.name for each in statement.names)
            within = [f"{module}.{each.name}" for each in statement.names]
            return self._of_name(module, f"from {module} import {names}", package, within)
        return _defines(statement)

    def _of_name(self, name: str, line: str, package: str, within: list[str] | None = None) -> bool:
        specs = list(_specs(name))
        if _is_library(name, specs):
            exec(line, {})
            return True
        if len(specs) <= name.count("."):
            return False
        for each in within or ():
            found = list(_specs(each))
            if len(found) > each.count("."):
                specs.append(found[-1])
        files = [(Path(spec.origin), spec.parent or "") for spec in specs if spec.origin]
        return all(self.of_file(file, parent) for file, parent in files)


def _specs(name: str) -> Iterator[ModuleSpec]:
    """Yield the packages that a module lies in and it itself, as far as they are found, without importing any."""
    path = None
    parts = name.split(".")
    for place in range(len(parts)):
        spec = PathFinder.find_spec(".".join(parts[: place + 1]), path)
        if spec is None:
            return
        yield spec
        path = spec.submodule_search_locations
        if path is None:
            return


def _is_library(name: str, specs: list[ModuleSpec]) -> bool:
    top, _, _ = name.partition(".")
    if top in sys.modules or not specs:
        return top in sys.stdlib_module_names or _lies_in_library(getattr(sys.modules.get(top), "__spec__", None))
    return _lies_in_library(specs[0])


def _lies_in_library(spec: ModuleSpec | None) -> bool:
    places = [] if spec is None else [spec.origin, *(spec.submodule_search_locations or ())]
    return any(place is not None and is_library_file(place) for place in places)


def _defines(statement: ast.stmt) -> bool:
    """Whether a statement only defines a function, a class or a constant, or does nothing."""
    if isinstance(statement, ast.Pass):
        return True
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
        carried_out = (*statement.decorator_list, *statement.args.defaults, *filter(None, statement.args.kw_defaults))
        return not any(map(_calls, carried_out))
    if isinstance(statement, ast.ClassDef):
        head = (*statement.decorator_list, *statement.bases, *statement.keywords)
        return all(map(_defines, statement.body)) and not any(map(_calls, head))
    if isinstance(statement, ast.Expr):
        return isinstance(statement.value, ast.Constant)
    if isinstance(statement, ast.If):
        return isinstance(statement.test, (ast.Name, ast.Attribute)) and ast.unparse(statement.test).endswith(
            "TYPE_CHECKING"
        )
    targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
    is_assigned = isinstance(statement, (ast.Assign, ast.AnnAssign)) and all(isinstance(t, ast.Name) for t in targets)
    return is_assigned and not _calls(statement)


def _calls(node: ast.AST) -> bool:
    return any(isinstance(each, (ast.Call, ast.Await)) for each in ast.walk(node))
