"""Command options that set fields of a spec, with the spec's own types and defaults.

The spec's module is imported when such a command is parsed or its help printed, not when the program starts.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import MISSING, fields
from pkgutil import resolve_name
from types import UnionType
from typing import Annotated, Any, ClassVar, NamedTuple, get_args, get_origin, get_type_hints

import typer
from typer.core import TyperCommand
from typer.main import get_command


class SpecOption(NamedTuple):
    """One field of a spec as an option."""

    field: str
    flag: str
    """`--name`, `--name -n` with a short form, or `--name/--no-name` of a switch."""
    help: str
    """An imperative sentence without its full stop; the default is added."""
    metavar: str | None = None
    minimum: int | None = None
    default: str = ""
    """The default in words, with `{}` for the spec's own; empty = that alone."""
    maximum: int | None = None


class SpecOptions(NamedTuple):
    spec: str
    """The dataclass, as `module:name`."""
    options: tuple[SpecOption, ...]
    panel: str | None = None
    """Heading of these options in the help."""


class SpecCommand(TyperCommand):
    """A command with the options of some specs; `chosen` gives their values."""

    groups: ClassVar[tuple[SpecOptions, ...]] = ()
    specs_first: ClassVar[bool] = False
    """The help lists them before the command's own options."""
    _complete = False
    _params: list[Any]

    @property
    def params(self) -> list[Any]:
        if not self._complete:
            self._complete = True
            made = [option for group in self.groups for option in _make_options(group)]
            self._params = [*made, *self._params] if self.specs_first else [*self._params, *made]
        return self._params

    @params.setter
    def params(self, params: list[Any]) -> None:
        self._params = params


def make_command_class(*groups: SpecOptions, base: type[SpecCommand] = SpecCommand) -> type[SpecCommand]:
    """A class of command that has these options."""
    return type(base.__name__, (base,), {"groups": groups})


def chosen(context: typer.Context, group: SpecOptions) -> dict[str, Any]:
    """The fields that the command line sets, by name; all others have the spec's defaults."""
    values: dict[str, Any] = context.meta.get(_name_meta_key(group), {})
    return values


def _name_meta_key(group: SpecOptions) -> str:
    return f"{__name__}.{id(group.options)}"


def _make_options(group: SpecOptions) -> Sequence[Any]:
    spec = resolve_name(group.spec)
    types = get_type_hints(spec)
    defaults = {field.name: field.default for field in fields(spec)}

    def callback() -> None:
        """Never called: Typer reads only its signature."""

    parameters = [
        _make_parameter(group, option, types[option.field], defaults[option.field]) for option in group.options
    ]
    callback.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    callback.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    app = typer.Typer(add_completion=False)
    app.command()(callback)
    return get_command(app).params


def _make_parameter(group: SpecOptions, option: SpecOption, kind: object, default: object) -> inspect.Parameter:
    if get_origin(kind) is UnionType:
        (kind,) = (part for part in get_args(kind) if part is not type(None))
    if get_origin(kind) is tuple:  # an option that may be repeated
        kind = list[get_args(kind)[0]]  # type: ignore[misc]

    def note(context: typer.Context, value: object) -> object:
        if value is not None:
            fixed = tuple(value) if isinstance(value, list) else value
            context.meta.setdefault(_name_meta_key(group), {})[option.field] = fixed
        return value

    info = typer.Option(
        *option.flag.split(),
        callback=note,
        expose_value=False,
        metavar=option.metavar,
        min=option.minimum,
        max=option.maximum,
        help=_compose_help(option, default),
        show_default=False,
        rich_help_panel=group.panel,
    )
    annotation = Annotated[kind | None, info]  # type: ignore[valid-type]
    return inspect.Parameter(option.field, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _compose_help(option: SpecOption, default: object) -> str:
    words = _describe_default(default)
    if option.default:
        words = option.default.format(words)
    return f"{option.help} (default: {words})." if words else f"{option.help}."


def _describe_default(default: object) -> str:
    if default is MISSING or default is None or default in ("", ()):
        return ""
    if isinstance(default, bool):
        return "yes" if default else "no"
    return f"{default:g}" if isinstance(default, float) else str(default)
