"""`env.txt`: what engine, packages, host, GPUs and environment variables a measurement ran with.

A text of sections that begin with `[name]`. `launch.environment.capture` writes it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_SECTION = re.compile(r"^\[(\w+)\]\n(.*?)(?=^\[|\Z)", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class CapturedEnvironment:
    """The sections, a line each; empty where the text has none."""

    engine: tuple[str, ...] = ()
    """`name: value`: kind, python, `vllm version` and those of the other components, `vllm commit`."""
    host: tuple[str, ...] = ()
    """`name: value`: kernel, libc, cpu, cores, memory, load."""
    gpu: tuple[str, ...] = ()
    """As `nvidia-smi -L` lists them, or why there is none."""
    topology: tuple[str, ...] = ()
    """How GPUs and adapters are connected, as `nvidia-smi topo -m` has it; empty = no GPU."""
    packages: tuple[str, ...] = ()
    """`name==version`."""
    environment: tuple[str, ...] = ()
    """`NAME=value`; secrets are masked."""

    def stated(self, name: str) -> str:
        """The value of `name` in the section `engine` or `host`; empty = not stated."""
        pairs = (line.partition(": ") for line in (*self.engine, *self.host))
        return next((value for key, _, value in pairs if key == name), "")


def parse_environment(text: str) -> CapturedEnvironment:
    """A section of another name is left out."""
    sections = {
        name: tuple(line for line in body.splitlines() if line.strip()) for name, body in _SECTION.findall(text)
    }
    known = CapturedEnvironment.__dataclass_fields__
    return CapturedEnvironment(**{name: lines for name, lines in sections.items() if name in known})
