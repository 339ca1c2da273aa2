"""A user's own policy: a class in a Python file, with the same parts as ours."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from runners.router.policies.policy import Policy, PolicyError


def load_class(path: str, wanted: str = "") -> type[Policy]:
    """The one policy class that the file defines, or the one named `wanted`. Runs the file's code.

    A policy class has `name` (text), `source` (text) and `decide(request, cluster)`. Raises PolicyError naming the file
    and what is wrong with it.
    """
    classes = find_classes(_run_file(Path(path)))
    if wanted and wanted not in classes:
        raise PolicyError(f"{path} has no policy class {wanted!r}", remedy=f"it has {', '.join(classes) or 'none'}")
    if not wanted and len(classes) != 1:
        remedy = f"name one: {path}:{next(iter(classes))}" if classes else "write a class with name, source and decide"
        raise PolicyError(f"{path} has {len(classes)} classes with a `decide`, not one", remedy=remedy)
    cls = classes[wanted or next(iter(classes))]
    for part in ("name", "source"):
        if not isinstance(getattr(cls, part, None), str):
            raise PolicyError(
                f"{path}: {cls.__name__} has no `{part}`", remedy=f'add `{part}: ClassVar[str] = "..."` to it'
            )
    return cls


def find_classes(module: ModuleType) -> dict[str, type[Policy]]:
    """The policy classes that a module defines, by the names of the classes."""
    return {
        name: value
        for name, value in vars(module).items()
        if isinstance(value, type) and value.__module__ == module.__name__ and callable(getattr(value, "decide", None))
    }


def _run_file(path: Path) -> ModuleType:
    try:
        digest = hashlib.sha256(path.read_bytes()).hexdigest()[:12]
    except OSError as error:
        raise PolicyError(
            f"policy file {path}: {error.strerror}", remedy="give the path of a Python file with a policy class"
        ) from error
    name = f"tracon_policy_{digest}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise PolicyError(f"policy file {path} is no Python file", remedy="its name has to end in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up while they are made
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        where = f", line {error.lineno}" if isinstance(error, SyntaxError) else ""
        raise PolicyError(
            f"policy file {path}{where}: {type(error).__name__}: {error}", remedy="correct the file"
        ) from error
    return module
