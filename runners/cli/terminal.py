"""Output of commands: data on stdout, narration and errors on stderr."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec
from rich.console import Console
from rich.text import Text

from results.records.visible import escape_controls, visible
from results.report.visible_console import VisibleConsole

_color: bool | None = None


class VisibleFormatter(logging.Formatter):
    """Formats a record, a traceback included, without control characters."""

    def format(self, record: logging.LogRecord) -> str:
        return visible(super().format(record))


def make_logs_visible() -> None:
    """Escape control characters in what libraries log on stderr, such as asyncio about a failed callback."""
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(VisibleFormatter())


def use_color(wanted: bool | None) -> None:
    """Force color on or off for this process; None = decide by terminal and NO_COLOR."""
    global _color
    _color = wanted
    if wanted is False:
        os.environ["NO_COLOR"] = "1"  # inherited by the processes of engines and console


def out() -> Console:
    """stdout, for data that a person reads."""
    return _make_console(stderr=False)


def err() -> Console:
    """stderr, for narration."""
    return _make_console(stderr=True)


def narrate(*parts: str | tuple[str, str]) -> None:
    """Print one line on stderr; parts are texts or (text, style), without markup."""
    err().print(Text.assemble(*parts))


def _make_console(*, stderr: bool) -> Console:
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else 160
    return VisibleConsole(
        stderr=stderr,
        no_color=True if _color is False else None,
        force_terminal=True if _color else None,
        width=width,
        highlight=False,
    )


@contextmanager
def show_step_progress() -> Iterator[Callable[[int, int, str], None]]:
    """A callback (step, of, text) shown as a spinner on a terminal and as lines in a pipe."""
    console = err()
    if not console.is_terminal:
        yield lambda step, of, text: console.print(f"[{step}/{of}] {text}", markup=False, soft_wrap=True)
        return
    with console.status("") as status:
        yield lambda step, of, text: status.update(f"[{step}/{of}] {text}".replace("[", r"\["))


def encode_json(value: object) -> bytes:
    """As JSON. Bytes of a file's name that are no UTF-8 are lone surrogates in Python, which no JSON may hold: each
    becomes its escape as text, `\\udcff`.
    """
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return msgspec.json.encode(_escape_surrogates(msgspec.to_builtins(value)))


def _escape_surrogates(value: object) -> object:
    if isinstance(value, str):
        return value.encode(errors="backslashreplace").decode()
    if isinstance(value, dict):
        return {_escape_surrogates(key): _escape_surrogates(each) for key, each in value.items()}
    return [_escape_surrogates(each) for each in value] if isinstance(value, list | tuple) else value


def print_json(value: object) -> None:
    """One JSON document on stdout."""
    print_json_line(msgspec.json.format(encode_json(value), indent=2))


def print_json_line(json: bytes) -> None:
    """An encoded JSON document on stdout."""
    sys.stdout.buffer.write(escape_controls(json) + b"\n")
    sys.stdout.flush()


def fail(error: BaseException) -> int:
    """Print the error and its remedy as one paragraph on stderr; returns the exit code."""
    text = Text("tracon: ", style="bold red")
    text.append(str(error).rstrip(".") + ".", style="default")
    remedy = getattr(error, "remedy", "")
    if remedy:
        end = "" if remedy.endswith("?") else "."
        text.append(f" {remedy[0].upper()}{remedy[1:].rstrip('.')}{end}", style="default")
    err().print(text, soft_wrap=True)
    return int(getattr(error, "exit_code", 2))
