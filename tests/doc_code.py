"""The code of docs/extending.md, so that tests run what a reader copies."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from results.measures.latency import METRICS, RequestMetric

PAGE = Path(__file__).resolve().parent.parent / "docs" / "extending.md"


def code_blocks() -> dict[str, str]:
    """The page's code by the name in its first line."""
    text = PAGE.read_text(encoding="utf-8")
    return dict(re.findall(r"```(?:toml|python)\n# (\S+)\n(.*?)```", text, flags=re.DOTALL))


def load_module(path: Path, text: str) -> ModuleType:
    """The text as a module of that file."""
    path.write_text(text, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(f"toy_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@contextmanager
def declared_metric(folder: Path) -> Iterator[RequestMetric]:
    """The page's metric, from a file in the folder; it is declared until the end of the block."""
    metric: RequestMetric = load_module(folder / "client_wait.py", code_blocks()["client_wait.py"]).WAITED
    try:
        yield metric
    finally:
        del METRICS[metric.name]
