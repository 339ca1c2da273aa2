"""An open-loop cell: requests leave at their scheduled times whatever the engine does, until the cell has enough.

The cap on requests in flight drops and counts, it never blocks. The window begins when the warm-up ends and closes at
the scheduled time of the first arrival at which both the minimum duration and the minimum completions are met, or at
the hard stop. Requests sent before that get `drain_s` to finish, so that the slow ones are in the sample as the fast
ones are; what is still open then is CUT.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from runners.load.cell import Cell
from runners.load.client import LoadClient, resolve
from runners.load.meter import allow_connections, at_once, follow, quiet_gc
from runners.load.recorder import Recorder
from runners.load.spec import LoadOutcome, LoadSpec, LoadTick


async def run_cell(spec: LoadSpec, on_tick: Callable[[LoadTick], None], cut: asyncio.Event) -> LoadOutcome:
    """Run the cell in this process, on this event loop, and write its records.

    `cut` ends it early: what is in flight is recorded as CUT. Raises LoadError where nothing can be measured.
    """
    allow_connections(spec.inflight_cap + spec.spare_connections, "lower inflight_cap")
    client = LoadClient(
        await resolve(spec.url),
        spares=spec.spare_connections,
        request_timeout_s=spec.request_timeout_s,
        stall_timeout_s=spec.stall_timeout_s,
    )
    recorders = [Recorder(Path(path)) for path in (spec.requests_path, spec.chunks_path) if path]
    cell = Cell(spec, client, recorders[0], recorders[1] if spec.chunks_path else None)
    try:
        cell.prepare()
        await client.open()
        with quiet_gc(), at_once(spec.realtime) as cell.realtime:
            cell.start()
            await follow(cell, client, recorders, on_tick, cut, spec.drain_s)
    finally:
        cell.finish()
        await client.close()
        for recorder in recorders:
            await recorder.close()
    return cell.outcome()
