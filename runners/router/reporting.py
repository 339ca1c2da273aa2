"""Where the router's core reports what changes at its instances."""

from __future__ import annotations

from collections.abc import Callable

from results.records.instance_events import InstanceEvent

Report = Callable[[InstanceEvent], None]
"""Takes an event at the moment of the change, and stamps it."""


def ignore_event(event: InstanceEvent) -> None:
    """Nothing is recorded."""
