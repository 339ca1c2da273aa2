"""Every `tracon` command on a page, and in the help of a command, is one that this Tracon takes. Nothing is run."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from launch.profile import load_profile
from runners.campaign.experiment import RunOptions
from runners.cli import app
from runners.experiments.settings import find_preset
from runners.router.policies import make_policy
from tests.runners.prepared import prepare
from tests.test_docs import EXAMPLES, PAGES, ROOT

SPAN = re.compile(r"`tracon ([^`{]+)`")
FENCE = re.compile(r"^```\w*\n(.*?)^```", re.MULTILINE | re.DOTALL)
OPTION = re.compile(r"--?[a-z][\w-]*")
FILE = re.compile(r"FILE|[\w./-]+\.[a-z]\w*")
PLACEHOLDER = re.compile(r"\.\.\.$|[\[\]]")
"""`...` stands for more of the same, `[RUN]` for an argument that may be left out."""


def shell_commands(text: str) -> Iterator[str]:
    """The commands of a page's fenced blocks, without their comments."""
    for block in FENCE.findall(text):
        for line in block.replace("\\\n", " ").splitlines():
            command = line.partition(" #")[0].strip().removeprefix("$ ")
            if command.partition(" ")[0] == "tracon":
                yield command


def all_commands(group: Any) -> Iterator[Any]:  # noqa: ANN401  # Typer's copy of click is private
    yield group
    for command in getattr(group, "commands", {}).values():
        yield from all_commands(command)


def parse(command: str) -> dict[str, Any]:
    """The values that the command line gives; the files that it names are made, empty.

    Raises click's UsageError where Tracon does not take it.
    """
    root, values = get_command(app), {}
    for each in all_commands(root):
        each.callback = lambda **chosen: values.update(chosen)
    words = shlex.split(PLACEHOLDER.sub("", command))[1:]
    for file in (Path(word) for word in words if FILE.fullmatch(word)):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    root.main(words, standalone_mode=False)
    return values


def check_run(values: dict[str, Any]) -> None:
    """The plan can be made; where it needs a file of the reader's own, the preset exists."""
    names = {field.name for field in fields(RunOptions)}
    chosen: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in values.items()
        if name in names and value is not None
    }
    options = RunOptions(**chosen)
    files = (options.profile, options.trace, options.engine, *options.configs, *options.policies)
    if Path(options.profile).suffix:
        return
    presets = load_profile(options.profile).experiments[options.experiment]
    find_preset(presets, options.experiment, options.profile, options.preset)
    if not any(Path(name).suffix for name in files):
        prepare(options)


def on_pages() -> list[Any]:
    pages = [*PAGES, *EXAMPLES]
    return [
        pytest.param(command, id=f"{page.relative_to(ROOT)}: {command}")
        for page in pages
        for command in shell_commands(page.read_text(encoding="utf-8"))
    ]


@pytest.mark.parametrize("command", on_pages())
def test_a_command_of_a_page_is_one_that_tracon_takes(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    values = parse(command)
    if "experiment" in values and "start-time" not in command:  # the experiment that docs/extending.md adds
        check_run(values)
    elif isinstance(values.get("policy"), str) and not Path(values["policy"]).suffix:
        make_policy(values["policy"], dict(text.split("=") for text in values.get("setting") or ()))


def spans() -> list[str]:
    texts = [page.read_text(encoding="utf-8") for page in [*PAGES, *EXAMPLES]]
    helps = [each.help or "" for each in all_commands(get_command(app))]
    return sorted({" ".join(span.split()) for text in [*texts, *helps] for span in SPAN.findall(text)} - {"..."})


@pytest.mark.parametrize("span", spans())
def test_a_command_within_a_sentence_has_a_name_and_options_that_tracon_has(span: str) -> None:
    command: Any = get_command(app)
    words = shlex.split(span)
    while words and words[0] in getattr(command, "commands", {}):
        command = command.commands[words.pop(0)]
    if command.name == "simulate" and words and words[0].startswith("-"):
        command = command.commands["policies"]  # as `tracon simulate` takes options without a command
    assert command.name != "tracon", f"no command {words[0]}"
    known = {"--help"} | {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    assert [word for word in words if OPTION.fullmatch(word) and word not in known] == []


@pytest.mark.parametrize(
    "command", ["tracon runn", "tracon report --agan", "tracon why RUN", "tracon run routing --trials many"]
)
def test_a_wrong_command_is_seen(command: str) -> None:
    with pytest.raises(Exception, match=r"No such|Missing|valid integer"):
        parse(command)
