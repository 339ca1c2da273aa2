"""What a trace file is refused with."""

from __future__ import annotations

from runners.errors import RunnerError


class TraceError(RunnerError):
    """A trace file contradicts its format: which file, which line, which rule."""

    def __init__(self, file: str, line: int, rule: str) -> None:
        """`file`: its name; in an archive or a folder `archive/member`. `line`: from 1, where reading had come to."""
        super().__init__(
            f"{file}, line {line}: {rule}",
            remedy="correct the file, or name the format it really has with --format (docs/traces.md has their rules)",
        )
        self.file = file
        self.line = line
        self.rule = rule
