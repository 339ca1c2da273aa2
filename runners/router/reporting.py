"""How the router's core reports changes of its instances."""

from __future__ import annotations

from collections.abc import Callable

from results.records.instance_events import InstanceEvent

Report = Callable[[InstanceEvent], None]
"""Called at the moment of the change; it stamps the event's time."""


def ignore_event(event: InstanceEvent) -> None:
    """Record nothing."""
