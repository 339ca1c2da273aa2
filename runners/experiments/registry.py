"""The experiments that can be run."""

from __future__ import annotations

from importlib import import_module

from runners.campaign.experiment import Experiment
from runners.errors import RunnerError

FOLDERS = (
    "connector_tax",
    "routing",
    "pd_lifecycle",
    "capacity",
)
"""Folders of this package with an `entry.py` that declares `ENTRY`."""

_BY_NAME: dict[str, Experiment] = {}


def register(experiment: Experiment) -> None:
    """Make the experiment known to `tracon plan` and `tracon run`. Raises ValueError where its name is taken."""
    if experiment.name in _BY_NAME:
        raise ValueError(f"there is an experiment {experiment.name!r} already")
    _BY_NAME[experiment.name] = experiment


def unregister(name: str) -> None:
    del _BY_NAME[name]


for _folder in FOLDERS:
    register(import_module(f"runners.experiments.{_folder}.entry").ENTRY)


def experiments() -> tuple[Experiment, ...]:
    return tuple(_BY_NAME.values())


def select_experiment(name: str) -> Experiment:
    """Raises RunnerError for an unknown name."""
    if name not in _BY_NAME:
        raise RunnerError(f"unknown experiment {name!r}", remedy=f"choose one of: {', '.join(_BY_NAME)}")
    return _BY_NAME[name]
