"""Nothing that a journal, a log or a file's name holds makes the terminal of a command do anything."""

from __future__ import annotations

import ast
import io
import logging
import os
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
import typer
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from runners.cli import terminal
from runners.cli.accompany import accompany_run
from runners.cli.tables import begin_table
from runners.errors import RunnerError
from tests.console.test_sinks import write_poisoned
from tests.poison import OBEYED, POISON
from tests.runners.command import Tracon
from tests.runners.router.logs import simulate, write_log

ROOT = Path(__file__).resolve().parents[3]
ALLOWED = {
    ("runners/cli/__init__.py", "typer.echo"),  # the version, and typer's own help
    ("runners/cli/terminal.py", "sys.stdout.buffer.write"),
}
"""Calls that reach a terminal without `visible`, and why they may."""


Call = Callable[..., str]


@pytest.fixture
def call(tracon: Tracon) -> Call:
    """All that a command prints."""

    def run(*words: str) -> str:
        done = tracon(*words)
        return done.stdout + done.stderr

    return run


@pytest.mark.parametrize("which", ["middle", "migrating", "lifecycle"])
@pytest.mark.parametrize("command", [("status",), ("status", "--json"), ("watch",), ("watch", "--events"), ("list",)])
def test_no_command_passes_on_what_a_journal_holds(
    command: tuple[str, ...], which: str, tmp_path: Path, call: Call
) -> None:
    run = write_poisoned(tmp_path, which)
    named = () if command[0] == "list" else (run.name,)
    shown = call(command[0], *named, *command[1:], "--workspace", str(tmp_path))
    assert len(shown) > 50
    assert not OBEYED.search(shown)


def test_a_pick_of_a_hostile_session_is_explained_harmlessly(tmp_path: Path, call: Call) -> None:
    records = [
        msgspec.structs.replace(
            record,
            request=msgspec.structs.replace(record.request, session=f"s{POISON}", request=f"r{POISON}{record.seq}"),
        )
        for record in simulate("unified", sessions=3, turns=2)
    ]
    log = write_log(tmp_path / f"{POISON.replace(chr(0), '')}.jsonl", records)
    for arguments in (("why", str(log), "#1"), ("why", str(log), "#1", "--json"), ("why", str(log), "none")):
        shown = call(*arguments)
        assert "]52;c;" in shown
        assert not OBEYED.search(shown)


@pytest.mark.parametrize("json", [False, True])
def test_a_folder_whose_name_is_no_utf8_is_listed(json: bool, tmp_path: Path, tracon: Tracon) -> None:
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/20260101-000000-\xff"))
    folder.mkdir()
    done = tracon("list", "--workspace", str(tmp_path), *(["--json"] if json else []))
    assert done.returncode == 0, done.stderr
    if json:
        assert done.data()[0]["folder"] == f"{tmp_path}/20260101-000000-\\udcff"
    else:
        assert "20260101-000000-\ufffd" in done.stdout


def test_the_names_in_an_archive_are_reported_harmlessly(tmp_path: Path, call: Call) -> None:
    path = tmp_path / "trace.tar"
    with tarfile.open(path, "w") as archive:
        member = tarfile.TarInfo(f"x{POISON.replace(chr(0), '')}.jsonl")
        member.size = 4
        archive.addfile(member, io.BytesIO(b"{no\n"))
    shown = call("trace", "describe", str(path))
    assert "]52;c;" in shown
    assert not OBEYED.search(shown)


def test_the_name_of_a_run_that_came_from_elsewhere_is_printed_harmlessly(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runners.cli.follow.await_lease", lambda folder, worker_pid: None)
    with pytest.raises(typer.Exit):
        accompany_run(tmp_path / f"run{POISON}", 1, detach=True, console=False, json=False)
    shown = capsys.readouterr().out
    assert "]52;c;" in shown
    assert not OBEYED.search(shown)


@pytest.mark.parametrize("words", [("list", POISON), (POISON,), (f"-{POISON}",), (f"--\u202e{POISON}",)])
def test_a_wrong_argument_is_quoted_harmlessly(words: tuple[str, ...], call: Call) -> None:
    """A shell puts in the names of files for `*`."""
    shown = call(*words)
    assert "]52;c;" in shown or "No such option" in shown
    assert not OBEYED.search(shown)


def renderables() -> Iterator[RenderableType]:
    table = Table(title=POISON, caption=POISON)
    table.add_column(POISON)
    table.add_row(POISON)
    yield from (POISON, Text(POISON), table, Group(Text(POISON), table))


@pytest.mark.parametrize("stream", ["out", "err"])
def test_every_renderable_is_made_harmless(stream: str, capsys: pytest.CaptureFixture[str]) -> None:
    for renderable in renderables():
        getattr(terminal, stream)().print(renderable)
    terminal.fail(RunnerError(f"a message{POISON}", remedy=f"a remedy{POISON}"))
    terminal.print_json({"text": POISON})
    with terminal.show_step_progress() as step:
        step(1, 2, POISON)
    shown = capsys.readouterr()
    assert "\u241b]52" in shown.out + shown.err
    assert not OBEYED.search(shown.out + shown.err)


def test_text_from_outside_is_no_markup(capsys: pytest.CaptureFixture[str]) -> None:
    hostile = "[link=http://evil.example]ok[/link] [/] [bold]x :warning:"
    table = begin_table("failed cell", "why")
    table.add_row("cell", hostile)
    terminal.out().print(table)
    terminal.narrate("left ", (hostile, "bold"), f" as {hostile}")
    shown = capsys.readouterr()
    assert hostile in shown.out
    assert shown.err == f"left {hostile} as {hostile}\n"


def test_a_defect_quotes_text_from_outside_harmlessly(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise ValueError(f"text{POISON}")

    monkeypatch.setattr("runners.cli.refuse_host", fail)
    shown = call("list")
    assert "Traceback" in shown
    assert "]52;c;" in shown
    assert not OBEYED.search(shown)


def test_what_a_library_logs_is_harmless(capsys: pytest.CaptureFixture[str]) -> None:
    terminal.make_logs_visible()
    handler = logging.lastResort
    assert handler is not None
    handler.handle(logging.LogRecord("asyncio", logging.ERROR, __file__, 1, f"text{POISON}", None, None))
    shown = capsys.readouterr().err
    assert "]52;c;" in shown
    assert not OBEYED.search(shown)


def calls_to_terminals(path: Path) -> Iterator[tuple[str, str]]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        if name in ("print", "typer.echo", "input", "Console") or name.endswith(("stdout.write", "buffer.write")):
            arguments = [ast.unparse(argument) for argument in node.args]
            if not (arguments and arguments[0].startswith("visible(")):
                yield str(path.relative_to(ROOT)), name


def test_every_place_that_writes_to_a_terminal_is_known() -> None:
    paths = [*(ROOT / "runners" / "cli").rglob("*.py"), *(ROOT / "console").rglob("*.py")]
    unknown = {call for path in paths for call in calls_to_terminals(path)} - ALLOWED
    literal = {("console/__main__.py", "print")}  # one text without a variable
    assert unknown <= literal


def test_every_line_that_a_process_of_ours_writes_to_stderr_is_visible() -> None:
    for path in (ROOT / "runners").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "sys.stderr.write":
                [text] = node.args
                made = ast.unparse(text).startswith(("visible(", "f'{visible(", 'f"{visible('))
                assert made or isinstance(text, ast.Constant), f"{path.relative_to(ROOT)}:{node.lineno}"


@pytest.mark.parametrize(
    ("remedy", "end"), [("did you mean `b`?", "Did you mean `b`?"), ("name another.", "Name another.")]
)
def test_an_error_ends_with_one_mark(capsys: pytest.CaptureFixture[str], remedy: str, end: str) -> None:
    assert terminal.fail(RunnerError("no run `a`", remedy=remedy)) == 2
    assert capsys.readouterr().err.strip() == f"tracon: no run `a`. {end}"
