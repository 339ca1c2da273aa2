"""Runs of the registered experiments, prepared as the command line prepares them."""

from __future__ import annotations

from runners.campaign import start
from runners.campaign.experiment import RunOptions
from runners.experiments.registry import select_experiment


def prepare(options: RunOptions) -> start.Prepared:
    """Without an engine."""
    return start.prepare_run(select_experiment(options.experiment), options, need_engine=False)
