"""The run process: takes the lease, prepares the plan again, and runs cells until the run ends or is stopped."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from launch.environment import Engine
from launch.errors import LaunchError
from launch.local import LocalBackend
from results.records.events import Noted, RunChanged, RunState
from results.records.layout import RunLayout, append_rows
from results.records.plan import AcceptedChanges
from runners.campaign.cell_loop import CellLoop
from runners.campaign.context import RunContext
from runners.campaign.engine_launcher import Launcher
from runners.campaign.engine_slot import EngineSlot
from runners.campaign.experiment import Experiment
from runners.campaign.gpus import take_free_gpus
from runners.campaign.plan import find_changes_for_rest
from runners.campaign.start import Prepared, prepare_run, rebuild_options
from runners.errors import ExitCode, RunnerError
from state import lease as leases
from state.run import RUN_TRANSITIONS
from state.store import RunStore

log = logging.getLogger("tracon.work")

NO_ENGINE = Engine("none", Path(), Path(), Path(), {})
"""Engine of a run whose engines are simulated: nothing is launched."""


def work(folder: Path, find_experiment: Callable[[str], Experiment], *, accept_changes: bool) -> int:
    """Work on the run in `folder` to its end; returns the exit code. `find_experiment`: by its name."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    with RunStore.open(folder) as store:
        lease = leases.acquire(store)
        try:
            experiment = find_experiment(store.plan.experiment)
            prepared = _prepare_again(store, folder, experiment, accept_changes=accept_changes)
            return asyncio.run(_run_cells(store, lease, folder, experiment, prepared))
        finally:
            lease.release()


def _prepare_again(store: RunStore, folder: Path, experiment: Experiment, *, accept_changes: bool) -> Prepared:
    """What the frozen plan needs, as it is now on this host; a changed fingerprint stops the run unless accepted."""
    view = store.view()
    try:
        prepared = prepare_run(experiment, rebuild_options(view.plan), need_engine=True)
        changes = find_changes_for_rest(view, prepared.plan)
        if changes and not accept_changes:
            raise RunnerError(
                f"what shapes the numbers has changed: {changes}", remedy="`tracon resume --accept-changes`"
            )
        if changes:
            store.append(Noted("warning", view.run, f"resumed although these changed: {changes}"))
            # In the folder too, so that the report names them without the state file.
            append_rows(RunLayout(folder).accepted_changes, [AcceptedChanges(time.time(), changes)])
    except Exception as error:
        if RunState.INTERRUPTED in RUN_TRANSITIONS[view.state]:
            store.append(RunChanged(RunState.INTERRUPTED, f"{error} {getattr(error, 'remedy', '')}".strip()))
        raise
    used = dict.fromkeys(device for instance in view.instances.values() for device in instance.devices)
    if skipped := take_free_gpus(prepared.draft, tuple(used)):
        store.append(Noted("warning", view.run, skipped))
    return prepared


@contextlib.asynccontextmanager
async def _open_backend(engine: Engine) -> AsyncIterator[LocalBackend]:
    """On leaving, every engine is ended. One that is left is logged and raises nothing: by then the journal has the
    run's state, which the exit code stands for, and the next run process ends what is left.
    """
    backend = LocalBackend(engine)
    try:
        yield backend
    finally:
        try:
            await backend.close()
        except LaunchError as error:
            log.error("an engine may be left: %s. %s", error, error.remedy)


async def _run_cells(
    store: RunStore, lease: leases.Lease, folder: Path, experiment: Experiment, prepared: Prepared
) -> ExitCode:
    engine = prepared.engine or NO_ENGINE
    layout = RunLayout(folder)
    configs = {config.name: config for config in prepared.draft.configs}
    async with _open_backend(engine) as backend:
        launcher = Launcher(
            backend=backend,
            profile=prepared.draft.profile,
            configs=configs,
            engine=engine,
            layout=layout,
            date=folder.name[:8],
            store=store,
        )
        context = RunContext(layout, store, launcher, EngineSlot(launcher), engine, prepared.draft.profile, configs)
        cell_runner = experiment.cell_runner(prepared.draft.grid, context)
        cells = CellLoop(store, lease, folder, cell_runner)
        loop = asyncio.get_running_loop()
        for signum in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(signum, cells.stop_now, f"signal {signal.Signals(signum).name}")
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        return await cells.run()
