"""How far the client's stamps lie from the server's true writes, and whether the host let the cell be measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from results.records.host import STOLEN, HostSample
from results.records.schemas import RequestRecord
from runners.load.openloop import ChunkStamps
from tests.servers.truth_server import Truth

FIRST_P50_S, FIRST_P99_S, ITL_P99_S = 0.001, 0.005, 0.005
"""Bounds: stamp of the first token less its true write, and the gap between two tokens less the true one."""
LATE_S = 0.005
"""A thread that sleeps for SAMPLE_S and is woken later than that has waited for a core: the client may have, too."""
WAITING = 0.5
"""A share of the time in which some task had no core: more, and the cores are too few for the cell."""
SAMPLE_S = 0.05

Seconds = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class StampErrors:
    """Of one cell, in seconds."""

    first: Seconds
    """Stamp of each request's first token less the write of that token."""
    gaps: Seconds
    """|gap between two stamps - gap between the writes|, over all tokens."""

    def find_excess(self) -> str:
        """The bounds that are exceeded, with their values; empty = none."""
        measured = {
            "p50 of the first token's stamp": (float(np.quantile(self.first, 0.5)), FIRST_P50_S),
            "p99 of the first token's stamp": (float(np.quantile(self.first, 0.99)), FIRST_P99_S),
            "p99 of the ITL": (float(np.quantile(self.gaps, 0.99)), ITL_P99_S),
        }
        above = (f"{name}: {1e3 * value:.2f} ms" for name, (value, bound) in measured.items() if value >= bound)
        return "; ".join(above)


def compare_stamps(
    rows: Sequence[RequestRecord], truth: Mapping[int, Truth], chunks: Mapping[int, Sequence[int]]
) -> StampErrors:
    """chunks: the stamp of every token chunk, by index of the request."""
    done = [(row, truth[row.index], chunks[row.index]) for row in rows if row.index in chunks]
    first = [(row.t_first_token_ns or 0) - true.t_writes_ns[0] for row, true, _ in done]
    gaps = [np.abs(np.diff(stamps) - np.diff(true.t_writes_ns)) for _, true, stamps in done]
    return StampErrors(np.array(first) / 1e9, np.concatenate(gaps) / 1e9)


def read_chunks(path: Path) -> Mapping[int, Sequence[int]]:
    rows = msgspec.json.Decoder(ChunkStamps).decode_lines(path.read_bytes())
    return {row.index: row.t_ns for row in rows}


def find_disturbance(samples: Sequence[HostSample], served_late_s: Seconds) -> str:
    """Why the host was no place to measure this cell; empty = nothing shows that it was disturbed.

    served_late_s: how much later than it meant to the server wrote each first token.
    """
    if not samples:
        return "the host was not sampled"
    late_s = max(one.late_s for one in samples)
    stolen = max((one.stolen for one in samples if one.stolen is not None), default=0.0)
    waiting = [one.waiting for one in samples if one.waiting is not None]
    served_s = float(np.quantile(served_late_s, 0.99)) if served_late_s.size else 0.0
    reasons = {
        f"a sleeping thread was woken {1e3 * late_s:.1f} ms late": late_s > LATE_S,
        f"{stolen:.0%} of a core was taken away": stolen > STOLEN,
        f"some task had no core for {float(np.mean(waiting or [0.0])):.0%} of the time": np.mean(waiting or [0.0])
        > WAITING,
        f"the server wrote {1e3 * served_s:.1f} ms late (p99)": served_s > LATE_S,
    }
    return "; ".join(reason for reason, holds in reasons.items() if holds)
