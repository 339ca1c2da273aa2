"""The bandwidth of the link between the two instances, stated or measured: `results/lifecycle/link.json`."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from results.records.frames import Gap, artifact_name
from results.records.layout import LifecycleLayout
from results.records.link import LinkRecord
from results.statistics.estimates import figure

GIVEN, MEASURED = "given", "measured here"


@dataclass(frozen=True, slots=True)
class Link:
    gbps: float
    source: str
    """GIVEN or MEASURED."""
    low: float | None = None
    high: float | None = None
    method: str = ""

    @property
    def text(self) -> str:
        """`12.5 Gbit/s (given)`. The range over the rounds is no interval and has no brackets."""
        spread = "" if self.low is None or self.high is None else f", {figure(self.low, 3)} to {figure(self.high, 3)}"
        how = f": {self.method}" if self.method else ""
        return f"{figure(self.gbps, 3)} Gbit/s ({self.source}{spread}{how})"


def read_links(layout: LifecycleLayout, stated_gbps: float | None) -> tuple[tuple[Link, ...], str, tuple[Gap, ...]]:
    """(known bandwidths, a stated one first; why measuring failed; a gap for an unreadable file)."""
    stated = () if stated_gbps is None else (Link(stated_gbps, GIVEN),)
    try:
        content = msgspec.json.decode(layout.link.read_bytes(), type=LinkRecord)
    except FileNotFoundError:
        return stated, "", ()
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        return stated, "", (Gap(artifact_name(layout.link), f"cannot be read: {error}"),)
    if content.gbps is None or content.gbps <= 0:
        return stated, content.reason or "no reason given", ()
    source = GIVEN if content.known_from == "given" else MEASURED
    measured = Link(content.gbps, source, content.low, content.high, content.method)
    if measured.source == GIVEN:
        return stated or (measured,), "", ()
    return (*stated, measured), "", ()
