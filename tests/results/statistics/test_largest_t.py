"""Critical values of the largest |t|: those of the known laws, and the same on every processor."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from results.statistics.largest_t import compute_dunnett_critical, compute_dunnett_p, compute_symmetric_root
from tests.results.statistics.made_launches import CONFIGS, degrees_of, equicorrelated, pairs_half


@pytest.mark.parametrize(("size", "rho", "degrees"), [(1, 0.5, 10), (3, 0.5, 20), (7, 1 / 3, 16), (7, 1 / 3, 56)])
def test_the_critical_value_is_the_multivariate_ts(size: int, rho: float, degrees: int) -> None:
    c = compute_dunnett_critical(equicorrelated(size, rho), degrees)
    law = stats.multivariate_t(shape=equicorrelated(size, rho), df=degrees, seed=1)
    within = law.cdf(np.full(size, c), lower_limit=np.full(size, -c))
    assert within == pytest.approx(0.95, abs=0.003)


def test_one_comparison_needs_no_correction() -> None:
    assert compute_dunnett_critical(equicorrelated(1, 0.0), 12) == pytest.approx(stats.t.ppf(0.975, 12), abs=0.02)
    assert compute_dunnett_p(equicorrelated(1, 0.0), 12, 2.0) == pytest.approx(2 * stats.t.sf(2.0, 12), abs=0.002)
    assert 0 < compute_dunnett_p(equicorrelated(3, 0.5), 12, 1e9) < 1e-4


@pytest.mark.parametrize("blocks", [3, 5])
def test_the_bounds_of_every_two_are_those_of_the_studentized_range(blocks: int) -> None:
    known = stats.studentized_range.ppf(0.95, len(CONFIGS), degrees_of(blocks)) / math.sqrt(2)
    assert pairs_half(blocks) == pytest.approx(known, abs=0.02)


@pytest.mark.parametrize("seed", range(20))
def test_draws_do_not_depend_on_the_basis_that_linear_algebra_happens_to_give(seed: int) -> None:
    """Equal eigenvalues leave the basis open, and an eigenvalue that is 0 comes out as some 1e-17 of either sign."""
    rotation, _ = np.linalg.qr(np.random.default_rng(seed).standard_normal((4, 4)))
    exact = np.full((4, 4), 0.5) + np.diag([0.5] * 4)
    singular = np.pad(exact, ((0, 1), (0, 1)))
    shaken = singular + 1e-17 * np.random.default_rng(seed).standard_normal((5, 5))
    assert compute_symmetric_root(singular) == pytest.approx(compute_symmetric_root((shaken + shaken.T) / 2), abs=1e-12)
    assert rotation @ compute_symmetric_root(exact) @ rotation.T == pytest.approx(
        compute_symmetric_root(rotation @ exact @ rotation.T), abs=1e-12
    )
