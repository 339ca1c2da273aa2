"""The configs of connector-tax: names, order, pens. Plans need the names too: it imports little."""

from __future__ import annotations

from collections.abc import Mapping

from results.report.ink import PENS, Pen

BASELINE = "plain"
REPEAT = "plain_again"
"""The baseline under a second name: its difference from BASELINE is noise, never the tax of a connector."""
CONFIGS = (
    BASELINE,
    "noop_connector",
    "mooncake_producer",
    "mooncake_consumer",
    "mooncake_both",
    "nixl_both",
    "lmcache_only",
    "multi_mooncake_lmcache",
)
"""In the order of every figure; configs with other names come after, by name."""
CONFIG_PENS: Mapping[str, Pen] = {
    **dict(zip(CONFIGS, PENS, strict=True)),
    REPEAT: Pen(PENS[0].color, "x", (0, (1, 2))),
}
"""A config has the same pen in every figure, and the baseline's second name its color: it is the same config."""


def rank_config(config: str) -> tuple[int, str]:
    """Sort key of a config's name."""
    return (CONFIGS.index(config) if config in CONFIGS else len(CONFIGS)), config
