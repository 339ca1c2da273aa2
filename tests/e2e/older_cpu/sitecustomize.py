"""Hides AVX-512 and AMX from vLLM in a Python that has this folder on PYTHONPATH: a CPU that has AVX2 and no more.

vLLM asks `torch.cpu` which instruction sets there are, and by the answer loads one build of its kernels and picks each
operation. oneDNN and PyTorch's own kernels ask the CPU: ONEDNN_MAX_CPU_ISA and ATEN_CPU_CAPABILITY bind those.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from types import MappingProxyType, ModuleType

HIDDEN = ("avx512", "amx")


class HideInstructionSets(importlib.abc.MetaPathFinder):
    """Edits `torch.cpu` as soon as it has been imported."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != "torch.cpu":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert spec.loader is not None
        run = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            run(module)
            answer = module.get_capabilities
            module.__dict__["get_capabilities"] = lambda: MappingProxyType(
                {key: False if key.startswith(HIDDEN) else value for key, value in answer().items()}
            )

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


sys.meta_path.insert(0, HideInstructionSets())
