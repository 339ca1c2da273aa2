"""Trials that replay one made log agree to the last digit, and what all agrees has no interval."""

from __future__ import annotations

import numpy as np
import pytest

from results.statistics.estimates import Samples
from results.statistics.trials import Measured

HAIR = 1e-9


@pytest.fixture
def trials_differ_by_a_hair(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests of which number decides, not of how trials spread: the intervals are as good as without width."""

    def jitter(measured: Measured) -> Samples:
        values: Samples = np.array([trial.value for trial in measured.trials.values()])
        shifted: Samples = values + HAIR * (np.arange(values.size) - (values.size - 1) / 2)
        return shifted

    monkeypatch.setattr(Measured, "values", property(jitter))
