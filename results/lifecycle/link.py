"""What the link between the two instances carries, as it was given or measured: `results/lifecycle/link.json`."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from results.lifecycle.record import LifecycleLayout
from results.load import Gap, artifact_name
from results.statistics import figure

GIVEN, MEASURED = "given", "measured here"


@dataclass(frozen=True, slots=True)
class Link:
    """One limit, in 10^9 bits per second."""

    gbps: float
    source: str
    """GIVEN or MEASURED."""
    low: float | None = None
    high: float | None = None
    method: str = ""

    @property
    def text(self) -> str:
        """`12.5 Gbit/s (given)`; the rounds' range is no interval, and has no brackets."""
        spread = "" if self.low is None or self.high is None else f", {figure(self.low, 3)} to {figure(self.high, 3)}"
        how = f": {self.method}" if self.method else ""
        return f"{figure(self.gbps, 3)} Gbit/s ({self.source}{spread}{how})"


class _File(msgspec.Struct, frozen=True, rename={"source": "from"}):
    gbps: float | None = None
    low: float | None = None
    high: float | None = None
    method: str = ""
    source: str = ""
    reason: str = ""


def links_of(layout: LifecycleLayout, given_gbps: float | None) -> tuple[tuple[Link, ...], str, tuple[Gap, ...]]:
    """The limits that are known, what was given first; why none was measured; and a file that cannot be read."""
    given = () if given_gbps is None else (Link(given_gbps, GIVEN),)
    try:
        said = msgspec.json.decode(layout.link.read_bytes(), type=_File)
    except FileNotFoundError:
        return given, "", ()
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        return given, "", (Gap(artifact_name(layout.link), f"cannot be read: {error}"),)
    if said.gbps is None or said.gbps <= 0:
        return given, said.reason or "no reason given", ()
    measured = Link(said.gbps, GIVEN if said.source == "given" else MEASURED, said.low, said.high, said.method)
    if measured.source == GIVEN:
        return given or (measured,), "", ()
    return (*given, measured), "", ()
