"""What several panels and the header show of a cell's router: whether it is current, its alarms, its names."""

from __future__ import annotations

from console.feed import Picture, find_now
from console.rows.instances import STALE_S
from results.records.events import CellState, RoutedLoad
from state.model import RunView
from state.routing import RoutingView

REPLAY = "replay"
"""The kind of the cells whose requests go through a router."""
_CELL_PARTS = 3
"""A cell that replays is named stage/policy/trial."""


def is_routed(view: RunView) -> bool:
    """The run sends requests through a router."""
    return view.routing is not None or plans_replays(view)


def plans_replays(view: RunView) -> bool:
    return any(cell.kind == REPLAY for cell in view.plan.cells)


def is_current(picture: Picture, routing: RoutingView) -> bool:
    """The router's numbers are of this moment."""
    return picture.live and is_running(picture, routing) and compute_age_s(picture, routing) <= STALE_S


def is_running(picture: Picture, routing: RoutingView) -> bool:
    cell = picture.view.cells.get(routing.cell)
    return cell is not None and cell.state is CellState.RUNNING and cell.attempt == routing.attempt


def compute_age_s(picture: Picture, routing: RoutingView) -> float:
    return max(0.0, find_now(picture) - routing.latest_unix_s)


def list_alarms_now(picture: Picture) -> tuple[str, ...]:
    """The running router's alarms; empty where its numbers are old."""
    routing = picture.view.routing
    return routing.alarms if routing is not None and is_current(picture, routing) else ()


def explain_absence(picture: Picture) -> str:
    """The text in place of a router."""
    if plans_replays(picture.view):
        return "no cell has been routed yet"
    return "no request of this run goes through a router"


def name_engine(load: RoutedLoad) -> str:
    """What the rest of the run calls this instance."""
    return load.engine or load.instance


def name_place(view: RunView, cell: str) -> str:
    """The cell as `tracon why --cell` takes it: the path of its decisions below the run's results; empty = unknown."""
    known = view.cells.get(cell)
    parts = [] if known is None else known.cell.split("/")
    return f"{parts[1]}/trial_{known.plan.trial}" if known is not None and len(parts) == _CELL_PARTS else ""
