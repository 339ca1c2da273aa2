"""Help of `plan` and `run`: what an option means to each experiment comes from the experiments' registry."""

from __future__ import annotations

from typing import Any

from runners.cli.spec_options import SpecCommand


class ExperimentCommand(SpecCommand):
    """Completes its help when it is printed: experiments can be registered until then."""

    specs_first = True

    def format_help(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401  # Typer's copy of click is private
        helps = option_helps()
        for parameter in self.params:
            text = getattr(parameter, "help", None)
            if text and parameter.name in helps:
                parameter.help = f"{text.rstrip('.')}{helps[parameter.name]}."
        super().format_help(ctx, formatter)


def option_helps() -> dict[str, str]:
    """By parameter: what follows its general help."""
    from runners.experiments.registry import experiments

    known = experiments()
    helps = {"experiment": ": " + ", ".join(f"`{experiment.name}`" for experiment in known)}
    for name in dict.fromkeys(name for experiment in known for name in experiment.option_help):
        meanings = {experiment.name: experiment.option_help.get(name) for experiment in known}
        helps[name] = ". " + "; ".join(f"`{experiment}`: {text}" for experiment, text in meanings.items() if text)
    return helps
