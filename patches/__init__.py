"""What lives inside an engine process: two probes, a no-op connector, CPU shims. Imports only the standard library."""

from __future__ import annotations

__version__ = "0.1.0"
