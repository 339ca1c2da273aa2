"""The error for an invalid trace file."""

from __future__ import annotations

from runners.errors import RunnerError


class TraceError(RunnerError):
    """A trace file violates its format: file, line and rule."""

    def __init__(self, file: str, line: int, rule: str) -> None:
        """`file`: its name; in an archive or a folder `archive/member`. `line`: from 1, where reading stopped."""
        super().__init__(
            f"{file}, line {line}: {rule}",
            remedy="correct the file, or name its actual format with --format (docs/traces.md lists the rules)",
        )
        self.file = file
        self.line = line
        self.rule = rule
