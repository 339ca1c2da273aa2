"""A user's policy: a class in a Python file with the same interface as the built-in ones."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from runners.router.policies.policy import Policy, PolicyError


def load_class(path: str, class_name: str) -> type[Policy]:
    """The policy class of that name in a Python file; empty = the only one. Runs the file's code.

    A policy class has `name` (text), `source` (text) and `decide(request, cluster)`. Raises PolicyError naming the file
    and what is wrong with it.
    """
    classes = find_classes(_run_file(Path(path)))
    if class_name and class_name not in classes:
        raise PolicyError(f"{path} has no policy class {class_name!r}", remedy=f"it has {', '.join(classes) or 'none'}")
    if not class_name and len(classes) != 1:
        remedy = f"name one: {path}:{next(iter(classes))}" if classes else "write a class with name, source and decide"
        raise PolicyError(f"{path} has {len(classes)} classes with a `decide`, not one", remedy=remedy)
    cls = classes[class_name or next(iter(classes))]
    for part in ("name", "source"):
        if not isinstance(getattr(cls, part, None), str):
            raise PolicyError(
                f"{path}: {cls.__name__} has no `{part}`", remedy=f'add `{part}: ClassVar[str] = "..."` to it'
            )
    return cls


def find_classes(module: ModuleType) -> dict[str, type[Policy]]:
    """The policy classes that a module defines, by class name."""
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
    sys.modules[name] = module  # dataclasses look up their module while they are defined
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        where = f", line {error.lineno}" if isinstance(error, SyntaxError) else ""
        raise PolicyError(
            f"policy file {path}{where}: {type(error).__name__}: {error}", remedy="correct the file"
        ) from error
    return module
