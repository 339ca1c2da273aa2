"""The transfer probe's log, by its earlier name."""

from results.transfer_probe import ProbeEvent, ProbeLog, ProbeStatus, read_probe

__all__ = ["ProbeEvent", "ProbeLog", "ProbeStatus", "read_probe"]
