"""Which hooks fit a vLLM by its source files alone: nothing of it is imported, so neither GPU nor packages are needed.

`python -m patches.source_check SITE_PACKAGES` prints `{"vllm": version or null, "misfits": {probe: {hook: why}}}`.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

from . import compile_key, engine_transfers, hooks, mooncake_transfers, nixl_transfers
from .hooks import Method, Shape

_CONNECTORS = "vllm.distributed.kv_transfer.kv_connector.v1"
MOONCAKE = f"{_CONNECTORS}.mooncake.mooncake_connector"
NIXL = f"{_CONNECTORS}.nixl.pull_worker"


def list_probes() -> Mapping[str, tuple[Method | Shape, ...]]:
    """Every hook with its module. Hooks of Mooncake and NIXL are checked on instances at run time, without `self`."""
    return {
        "step probe": hooks.HOOKS,
        "transfer probe": engine_transfers.HOOKS,
        "Mooncake's transfers": tuple(_on_class(hook, MOONCAKE) for hook in mooncake_transfers.HOOKS),
        "NIXL's transfers": tuple(_on_class(hook, NIXL) for hook in nixl_transfers.HOOKS),
        "compiled kernels": (compile_key.COMPILE_FACTORS,),
    }


def _on_class(hook: Method, module: str) -> Method:
    return replace(hook, module=module, signatures=tuple(("self", *known) for known in hook.signatures))


class Sources:
    """The modules of one vLLM, as files."""

    def __init__(self, packages: Path) -> None:
        self._packages = packages

    @property
    def exist(self) -> bool:
        return self._find_file("vllm.engine.arg_utils") is not None

    def version(self) -> str | None:
        """As the distribution's metadata has it."""
        names = (path.name for path in self._packages.glob("vllm*-*.dist-info"))
        matches = (re.fullmatch(r"vllm(?:_cpu)?-([^-]+)\.dist-info", name) for name in names)
        return next((match.group(1) for match in matches if match), None)

    def misfit(self, hook: Method | Shape) -> str | None:
        """Why `hook` does not fit, None where it does."""
        tree = self._parse(hook.module)
        if tree is None:
            return f"no module {hook.module}"
        owners: list[ast.ClassDef | ast.Module] = [tree]
        if hook.owner:
            owner = _find_class(tree, hook.owner)
            if owner is None:
                return f"no class {hook.owner}"
            owners = [*self._list_lineage(tree, owner)]
        if isinstance(hook, Shape):
            attributes = {name for each in owners for name in _list_attributes(each)}
            missing = [name for name in hook.attributes if name not in attributes]
            return f"no attribute {', '.join(missing)}" if missing else None
        return _find_method_misfit(owners, hook)

    def _list_lineage(self, tree: ast.Module, owner: ast.ClassDef) -> Iterator[ast.ClassDef]:
        """The class and its bases, as far as they are classes of vLLM."""
        yield owner
        for base in owner.bases:
            name = base.id if isinstance(base, ast.Name) else ""
            home = tree if _find_class(tree, name) else self._parse(_find_import(tree, name))
            above = _find_class(home, name) if home is not None else None
            if home is not None and above is not None:
                yield from self._list_lineage(home, above)

    def _find_file(self, module: str) -> Path | None:
        path = self._packages.joinpath(*module.split("."))
        return next((file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()), None)

    def _parse(self, module: str) -> ast.Module | None:
        file = self._find_file(module) if module.startswith("vllm.") else None
        return None if file is None else _parse_file(file)


@cache
def _parse_file(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


def _find_method_misfit(owners: Sequence[ast.ClassDef | ast.Module], hook: Method) -> str | None:
    """`owners`: where to look for it, in this order."""
    methods = [_find_method(each, hook.method) for each in owners]
    method = next((each for each in methods if each is not None), None)
    if method is None:
        return "missing"
    names = _list_parameters(method)
    if _is_classmethod(method):
        names = names[1:]
    fits = any((names[: len(known)] if hook.prefix else names) == known for known in hook.signatures)
    return None if fits else f"unknown signature ({', '.join(names)})"


def _find_class(tree: ast.Module, name: str) -> ast.ClassDef | None:
    return next((node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name), None)


def _find_import(tree: ast.Module, name: str) -> str:
    """The module that a name is imported from; empty where it is not."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and any(alias.name == name for alias in node.names):
            return node.module
    return ""


def _find_method(owner: ast.ClassDef | ast.Module, name: str) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    for node in owner.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name:
            return node
    return None


def _is_classmethod(method: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any(isinstance(mark, ast.Name) and mark.id == "classmethod" for mark in method.decorator_list)


def _list_parameters(method: ast.FunctionDef | ast.AsyncFunctionDef) -> tuple[str, ...]:
    arguments = method.args
    named = [*arguments.posonlyargs, *arguments.args]
    rest = [each for each in (arguments.vararg, *arguments.kwonlyargs, arguments.kwarg) if each is not None]
    return tuple(each.arg for each in (*named, *rest))


def _list_attributes(owner: ast.ClassDef | ast.Module) -> Iterator[str]:
    for node in owner.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id


def check_sources(packages: Path) -> dict[str, object]:
    """What does not fit the vLLM in this site-packages folder; `misfits` is null where it has no sources."""
    sources = Sources(packages)
    misfits: dict[str, dict[str, str]] | None = None
    if sources.exist:
        misfits = {
            probe: {hook.name: why for hook in own if (why := sources.misfit(hook)) is not None}
            for probe, own in list_probes().items()
        }
    return {"vllm": sources.version(), "misfits": misfits, "essential": sorted(hooks.ESSENTIAL)}


if __name__ == "__main__":
    print(json.dumps(check_sources(Path(sys.argv[1]))))
