"""Command-line options generated from a dataclass: its fields give names, types and defaults, so help repeats none."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from typing import Annotated, Any, get_type_hints

from typer.models import ParameterInfo

_REPEATABLE = tuple[str, ...]


def expand_options(
    parameter: str, struct: type[Any], options: Mapping[str, ParameterInfo]
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Replace the command's `parameter`, an instance of `struct`, by an option or argument for each field in `options`.

    Fields without an entry keep their defaults. A `tuple[str, ...]` becomes a repeatable option.
    """

    repeatable = [name for name in options if get_type_hints(struct)[name] == _REPEATABLE]

    def expand(command: Callable[..., None]) -> Callable[..., None]:
        own = inspect.signature(command, eval_str=True).parameters.values()
        generated = _make_parameters(struct, options)
        parameters = [new for old in own for new in (generated if old.name == parameter else [_as_keyword(old)])]

        def run_command(**values: Any) -> None:  # a command line's values
            chosen = {name: values.pop(name) for name in options}
            chosen |= {name: tuple(chosen[name] or ()) for name in repeatable}
            command(**{parameter: struct(**chosen)}, **values)

        run_command.__name__, run_command.__doc__ = command.__name__, command.__doc__
        run_command.__annotations__ = {each.name: each.annotation for each in parameters}
        run_command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        return run_command

    return expand


def _make_parameters(struct: type[Any], options: Mapping[str, ParameterInfo]) -> list[inspect.Parameter]:
    hints, by_name = get_type_hints(struct), {field.name: field for field in fields(struct)}
    parameters = []
    for name, option in options.items():
        hint, default = hints[name], by_name[name].default
        if hint == _REPEATABLE:
            hint, default = list[str] | None, None
        empty = inspect.Parameter.empty
        parameters.append(
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=empty if default is MISSING else default,
                annotation=Annotated[hint, option],
            )
        )
    return parameters


def _as_keyword(parameter: inspect.Parameter) -> inspect.Parameter:
    return parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
