"""`tracon trace describe` on recorded traces says what others computed of them."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from tests.e2e.cli import data, tracon

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
AGENTIC = DATA / "agentic_sessions_dev.tar.xz"


@pytest.mark.skipif(not AGENTIC.is_file(), reason="the shared trace is not here")
def test_recorded_agentic_sessions(tmp_path: Path) -> None:
    figures = tmp_path / "figures"
    done = tracon("trace", "describe", str(AGENTIC), "--json", "--figures", str(figures), workspace=tmp_path)
    assert done.returncode == 0, done.stderr
    described = data(done)
    assert (described["requests"], described["sessions"]) == (24_015, 355)
    assert described["input_tokens"] == pytest.approx(3.01e9, rel=0.002)
    assert described["input_output_ratio"] == pytest.approx(283, rel=0.002)
    assert described["apc_bound_intra"] == pytest.approx(0.9631, abs=5e-5)
    assert described["apc_bound_any"] == described["apc_bound_intra"]
    assert described["reuse"]["cross_session_share"] is None
    assert "local to a session" in described["reasons"]["reuse.cross_session_share"]
    assert [top["sessions"] for top in described["skew"]["top"]] == [4, 18, 36, 89, 178]
    drawn = pd.read_csv(figures / "figure_2c.csv")
    assert drawn["per_instance"].tolist()[::3] == [row["per_instance"] for row in described["kv"]["capacity"]]
    assert {path.suffix for path in figures.iterdir()} == {".png", ".svg", ".csv"}
