"""Sigma between launches is what was put in, and each cause changes one thing."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from tests.benchmarks.bench_launch_noise import BASELINE, CAUSES, sigma_between


def test_sigma_is_that_of_the_logarithms_and_its_interval_covers_it() -> None:
    rng = np.random.default_rng(1)
    covered = 0
    for _ in range(200):
        sigma, low, high = sigma_between((0.02 * np.exp(0.1 * rng.standard_normal(20))).tolist())
        assert low < sigma < high
        covered += low < 0.1 < high
    assert covered >= 180  # 95 % less three standard errors
    assert list(sigma_between([1.0, np.e])) == pytest.approx([np.sqrt(0.5), 0.3155, 22.56], rel=1e-3)


@pytest.mark.parametrize("name", sorted(set(CAUSES) - {"spawn_hash_seed"}))
def test_a_cause_changes_one_thing(name: str) -> None:
    settings = [field.name for field in dataclasses.fields(BASELINE) if field.name not in ("name", "what")]
    changed = [one for one in settings if getattr(CAUSES[name], one) != getattr(BASELINE, one)]
    assert len(changed) == 1


def test_the_hash_seed_is_fixed_where_it_would_be_random() -> None:
    """The fork server starts with a fixed one: the variant is to be compared with `spawn`."""
    assert dataclasses.replace(CAUSES["spawn_hash_seed"], name="", what="", env={}) == dataclasses.replace(
        CAUSES["spawn"], name="", what=""
    )
