"""The Migrations panel: pending prefill of the instances over time, arrows where sessions moved, every migration."""

from __future__ import annotations

from pathlib import Path

from console import format as say
from console.feed import Picture, find_now
from console.glossary import Entry
from console.glyphs import Glyphs
from console.panels.panel import Fact, Look, Opening, Panel, PanelKind, Place
from console.pasts import Past
from console.rows.instances import choose_routed_tone
from console.rows.routing import explain_absence, is_current, is_routed, name_place
from console.widgets.lines import Lines
from console.widgets.table import Cell, Column, Row, Span, Table, cell, flow_entries
from console.widgets.timeline import Arrow, Band, Scene, Timeline, count_band_lines
from results.records.count import format_count
from results.records.events import CellState
from results.records.named_number import NOT_MEASURED, digits
from results.report.terms import term
from state.bindings import Stay
from state.migrations import Migration, MigrationCounts
from state.model import RunView

TABLE_LEAST = 6
"""Least lines of the table where there is room for a band per instance."""
SHARE = 0.55
"""The timeline's share of the height, where there is more room."""
WIDE = 110
"""Columns from which a migration shows its turn and both of its times."""
TONES = {
    "transferred": "good", "unneeded": "dim", "recomputed": "warn", "failed": "bad", "refused": "dim",
    "started": "live",
}  # fmt: skip
"""The tone of each end, and of its arrow."""
SIGNS = {
    "transferred": "done", "unneeded": "done", "recomputed": "warning", "failed": "failed", "refused": "info",
    "started": "running",
}  # fmt: skip
MARGIN_S = 1.0
SEEN_LIVE = "counted while watched, Results (6) has all   "
"""Before the counts of a cell that the journal has only in part."""


def name_outcome(migration: Migration) -> str:
    """The phase; of a finished migration, how the target served the request."""
    if migration.phase != "done":
        return migration.phase
    return migration.reason if migration.reason in TONES else "transferred"


def list_cells(picture: Picture) -> tuple[str, ...]:
    """The cells that can be shown, in the order in which they were routed."""
    moved = picture.view.migrations
    return tuple(dict.fromkeys((*picture.pasts, *(row.cell for row in (moved.counts if moved else ())))))


def choose_shown_cell(picture: Picture) -> str:
    """The default cell: the one that runs, else the last with a migration or a refusal."""
    routing, moved = picture.view.routing, picture.view.migrations
    if routing is not None and is_current(picture, routing):
        return routing.cell
    if moved is not None and moved.counts:
        return moved.counts[-1].cell
    return routing.cell if routing is not None else ""


def list_migrations(picture: Picture, cell_id: str) -> tuple[Migration, ...]:
    """The cell's migrations and refusals that the view holds, oldest first."""
    moved = picture.view.migrations
    return () if moved is None else moved.of(cell_id)


def counts_of(picture: Picture, cell_id: str) -> MigrationCounts:
    moved = picture.view.migrations
    return MigrationCounts(cell_id, 0) if moved is None else moved.counts_of(cell_id)


def describe_cell(picture: Picture, cell_id: str, width: int) -> tuple[Cell, ...]:
    """The cell, its policy, and the amount moved, on as many lines as they need."""
    counts, past = counts_of(picture, cell_id), picture.pasts.get(cell_id)
    cells = list_cells(picture)
    position = f"{cells.index(cell_id) + 1} of {len(cells)}  " if len(cells) > 1 and cell_id in cells else ""
    started = counts.of("started")
    entries: tuple[Cell, ...] = (
        ((f"{past.policy}  " if past else "", "bold"), (f"{cell_id}  {position}", "dim")),
        ((f"{format_count(started, 'migration', 'migrations')}  {counts.of('refused')} refused  ", ""),),
        ((f"moved {say.tokens(counts.tokens)} tokens, {say.data(counts.bytes)}", "dim"),),
    )
    partial = (((SEEN_LIVE, "warn"),),) if _is_seen_in_part(picture.view) else ()
    return flow_entries((*partial, *entries), width)


def _is_seen_in_part(view: RunView) -> bool:
    """A simulation at full speed writes its journal only while it is a cell's turn, which may begin near its end."""
    return bool(view.plan.inputs.get("simulated")) and not view.pace


def count_outcomes(counts: MigrationCounts, *, running: bool = True) -> Cell:
    """Migrations by outcome, in the tones of their arrows, and refusals by reason.

    `running`: the cell is; in one that is over, nothing is under way.
    """
    done = counts.by_phase.get("done", {})
    recomputed, unneeded = done.get("recomputed", 0), done.get("unneeded", 0)
    numbers = {
        "transferred": counts.of("done") - recomputed - unneeded,
        "unneeded": unneeded,
        "recomputed": recomputed,
        "failed": counts.of("failed"),
        "under way" if running else "without an end": counts.under_way,
    }
    parts: list[Span] = [
        (f"▼ {number} {end}  ", TONES.get(end, TONES["started"])) for end, number in numbers.items() if number
    ]
    refused = sorted(counts.by_phase.get("refused", {}).items(), key=lambda item: -item[1])
    stayed = ", ".join(f"{reason} {number}" for reason, number in refused)
    return (*parts, (f"stayed: {stayed}" if stayed else "", "dim"))


# -- over time ------------------------------------------------------------------------------------------------------


def build_scene(picture: Picture, cell_id: str, window_s: float | None) -> Scene:
    """The cell's instances over its time, and its migrations as arrows."""
    past = picture.pasts.get(cell_id)
    if past is None or not past.pending:
        return Scene()
    routing = picture.view.routing
    current = routing is not None and routing.cell == cell_id and is_current(picture, routing)
    end = past.pending[-1][0] + past.step_s
    end = max(end, float(int(find_now(picture)) + 1)) if current else end
    start = past.pending[0][0] - MARGIN_S
    start = start if window_s is None else max(start, end - window_s)
    indexes = {name: index for index, name in enumerate(past.instances)}
    bands = tuple(Band(name, _choose_tone(picture, past, name), _list_points(past, name, start)) for name in indexes)
    arrows = tuple(
        Arrow(row.t_unix_s, indexes[row.source], indexes[row.target], TONES[name_outcome(row)])
        for row in list_migrations(picture, cell_id)
        if row.phase in ("started", "done", "failed") and row.source in indexes and row.target in indexes
    )
    return Scene(bands, arrows, start, end, past.step_s, _find_hot_above(picture, cell_id))


def _find_hot_above(picture: Picture, cell_id: str) -> float | None:
    """T_hot of the cell's policy, as planned, in tokens; None = it has none."""
    view = picture.view.cells.get(cell_id)
    tokens = view.plan.params.get("parameters", {}).get("hot_tokens") if view is not None else None
    return float(tokens) if isinstance(tokens, int | float) and not isinstance(tokens, bool) else None


def _list_points(past: Past, name: str, start: float) -> tuple[tuple[float, float], ...]:
    return tuple((at, pending[name]) for at, pending in past.pending if at >= start and name in pending)


def _choose_tone(picture: Picture, past: Past, name: str) -> str:
    return choose_routed_tone(picture.view, past.instances.get(name, name), list(past.instances).index(name))


# -- the table ------------------------------------------------------------------------------------------------------


def choose_migration_columns(width: int) -> tuple[Column, ...]:
    turn = (Column("turn", "turn", 4),) if width >= WIDE else ()
    return (
        Column("time", "time", 8, left=True),
        Column("session", "session", 14 if width >= WIDE else 10, left=True),
        *turn,
        Column("way", "from → to", 11, left=True),
        Column("phase", "phase", 13, left=True),
        Column("tokens", "tok", 5),
        Column("bytes", "MB", 5),
        Column("took", "ms", 5),
        Column("why", "why", 14, left=True, flex=True),
    )


def make_migration_rows(picture: Picture, cell_id: str, shown: tuple[Column, ...], glyphs: Glyphs) -> tuple[Row, ...]:
    past = picture.pasts.get(cell_id)
    made = []
    for key, row in _key_migrations(list_migrations(picture, cell_id)):
        end = name_outcome(row)
        cells = {
            "time": cell(say.clock(row.t_unix_s), "dim"),
            "session": cell(row.session),
            "turn": cell(str(row.turn), "dim"),
            "way": _format_way(picture, past, row),
            "phase": cell(f"{glyphs.sign(SIGNS[end])} {end}" if end in SIGNS else row.phase, TONES.get(end, "")),
            "tokens": cell(_format_amount(row, say.tokens(row.external_tokens))),
            "bytes": cell(_format_amount(row, digits(None if row.bytes is None else row.bytes / 1e6))),
            "took": cell(_format_amount(row, say.short_ms(row.transfer_s))),
            "why": cell(explain_reason(row), "dim"),
        }
        made.append(Row(key, tuple(cells[column.key] for column in shown), also=f"{row.migration} {row.reason}"))
    return tuple(made)


def _format_amount(row: Migration, text: str) -> str:
    """Empty for a refusal: nothing moved, so nothing was measured."""
    return "" if row.phase == "refused" else text


def explain_reason(row: Migration) -> str:
    """The policy's reason in words."""
    return row.text or (row.reason if name_outcome(row) != row.reason else "")


def _format_way(picture: Picture, past: Past | None, row: Migration) -> Cell:
    def named(instance: str) -> Span:
        return instance, _choose_tone(picture, past, instance) if past and instance in past.instances else ""

    return (
        (named(row.source), (" → ", "dim"), named(row.target)) if row.target else (named(row.source), (" stays", "dim"))
    )


def _key_migrations(migrations: tuple[Migration, ...]) -> list[tuple[str, Migration]]:
    return [(f"{row.migration} {row.phase == 'refused'} {row.t_unix_s!r}", row) for row in migrations]


def find_migration(picture: Picture, cell_id: str, key: str) -> Migration | None:
    """The migration of a row; None where the view has dropped it."""
    return dict(_key_migrations(list_migrations(picture, cell_id))).get(key)


# -- one session ----------------------------------------------------------------------------------------------------


def list_migration_facts(row: Migration) -> list[Fact]:
    """A migration as label and text."""
    took = None if row.ended_unix_s is None or row.phase == "refused" else row.ended_unix_s - row.t_unix_s
    facts = [
        ("time", say.moment(row.t_unix_s)),
        ("session", f"{row.session}, turn {row.turn}"),
        ("way", f"{row.source} → {row.target}" if row.target else f"it stays at {row.source}"),
        ("outcome", ": ".join(dict.fromkeys(part for part in (name_outcome(row), row.reason) if part))),
        ("why", explain_reason(row) or NOT_MEASURED),
    ]
    if row.phase != "refused":
        facts += [
            ("moved", f"{say.whole(row.external_tokens)} tokens, {say.data(row.bytes)}"),
            ("transfer", f"{say.ms(row.transfer_s)} ms"),
            ("begin to end", f"{say.ms(took)} ms"),
        ]
    return [*facts, ("request", row.migration)]


def list_life_facts(picture: Picture, cell_id: str, session: str) -> list[Fact]:
    """The instances that a session was bound to, as far as the ticks show them: a line per stay."""
    stays = _list_stays(picture, cell_id, session)
    if not stays:
        return [("its instances", "no pick of the session is stored")]
    ends = [*(stay.since_unix_s for stay in stays[1:]), None]
    return [(say.clock(stay.since_unix_s), _format_stay(stay, end)) for stay, end in zip(stays, ends, strict=True)]


def _list_stays(picture: Picture, cell_id: str, session: str) -> tuple[Stay, ...]:
    routing, past = picture.view.routing, picture.pasts.get(cell_id)
    if routing is not None and routing.cell == cell_id:
        return routing.lives.get(session, ())
    return past.lives.get(session, ()) if past is not None else ()


def _format_stay(stay: Stay, end: float | None) -> str:
    length = f"for {say.duration(end - stay.since_unix_s)}" if end is not None else "since then"
    picks = f"{format_count(stay.picks, 'pick', 'picks')} seen"
    came = f"migrated, by {stay.why}" if stay.migration and stay.why != "migrated" else stay.why
    return f"{stay.instance} {length}, {picks}; {came}"


def count_timeline_lines(bands: int, room: int, rows: int) -> int:
    """Lines for the bands, of `room`: their share, and what the table's rows leave of the rest."""
    bands, table = max(1, bands), max(2, rows + 1)
    wanted = max(count_band_lines(bands, 1), int(SHARE * room), room - max(TABLE_LEAST, table))
    return max(3, min(wanted, count_band_lines(bands), room - min(TABLE_LEAST, table)))


# -- the panel ----------------------------------------------------------------------------------------------------


class MigrationsPanel(Panel):
    """One routed cell: the one that runs, or the one chosen."""

    GROWS = True
    DEFAULT_CSS = """
    MigrationsPanel {
        #migrations-head, #migrations-ends { height: auto; text-wrap: nowrap; text-overflow: ellipsis; }
    }
    """

    def __init__(self, look: Look, run_folder: Path, *, id: str) -> None:
        self._head = Lines(id="migrations-head")
        self._ends = Lines(id="migrations-ends")
        self.timeline = Timeline(empty="the router was not sampled in this cell", glyphs=look.glyphs)
        self._table = Table(empty="no migration yet")
        super().__init__(look, run_folder, self._head, self._ends, self.timeline, self._table, id=id)
        self._chosen = ""
        self._picture = Picture()

    @property
    def table(self) -> Table:
        return self._table

    @property
    def cell(self) -> str:
        """The cell that is shown; empty where none was routed."""
        cells = list_cells(self._picture)
        return self._chosen if self._chosen in cells else choose_shown_cell(self._picture)

    def step(self, by: int) -> None:
        """Show the next or the previous cell. At the newest, the panel goes on to newer ones."""
        cells = list_cells(self._picture)
        if len(cells) > 1 and self.cell in cells:
            self._chosen = cells[(cells.index(self.cell) + by) % len(cells)]

    def open_row(self, table: Table, key: str, picture: Picture) -> Opening | None:
        """A migration with the life of its session."""
        migration = find_migration(picture, self.cell, key)
        if migration is None:
            return None
        facts = [*list_migration_facts(migration), ("its instances", "")]
        facts += list_life_facts(picture, migration.cell, migration.session)
        values = {"session": migration.session, "place": name_place(picture.view, migration.cell)}
        return Opening("Migration", facts, "turn by turn", values)

    def show(self, picture: Picture) -> None:
        self._picture = picture
        width, height = self.content_region.size
        if not width:
            return
        cell = self.cell
        self._ends.display = self.timeline.display = self._table.display = bool(cell)
        if not cell:
            self._head.show_lines(((explain_absence(picture), "dim"),))
            return
        head = describe_cell(picture, cell, width)
        self._head.show_lines(*head)
        view = picture.view.cells.get(cell)
        running = view is not None and view.state is CellState.RUNNING
        ends = count_outcomes(counts_of(picture, cell), running=running)
        self._ends.display = any(part for part, _ in ends)
        self._ends.show_lines(ends)
        columns = choose_migration_columns(width - 1)
        rows = make_migration_rows(picture, cell, columns, self.look.glyphs)
        drawn = build_scene(picture, cell, self.look.window_s)
        self.timeline.styles.height = count_timeline_lines(
            len(drawn.bands), height - len(head) - self._ends.display, len(rows)
        )
        self.timeline.glyphs = self.look.glyphs
        self.timeline.show(drawn)
        self._table.show(columns, rows)
        if self.look.follow:
            self._table.go_to_end()


PANEL = PanelKind(
    "migrations",
    "8",
    "Migrations",
    "sessions that moved: pending prefill over time with an arrow for each, every migration, where a session lived",
    MigrationsPanel,
    Place.ALONE,
    applies=is_routed,
    command=("tracon", "session", "{run}", "{session}", "--cell", "{place}"),
    steps_through="cell",
    entries=(
        Entry(
            "migration",
            term("migration"),
            "router, when it begins and when it ends",
            "many failures, or one session that moves repeatedly: the threshold is too low",
        ),
        Entry(
            "transfer (8)",
            term("transfer"),
            "engine counters, router's own stamps; – where they cannot say",
            "many ms per MB: see write bandwidth on Lifecycle",
        ),
        Entry("unneeded", term("unneeded migration"), "router"),
        Entry(
            "recomputed",
            term("recomputed migration"),
            "router",
            "the reason beside it: a quarantine, roles that do not fit, a failed transfer",
        ),
        Entry(
            "refused",
            term("refused migration"),
            "policy; reported once per session and reason",
            "far more than migrations: all are hot, or the cooldown is long",
        ),
        Entry("T_hot", term("T_hot"), "the policy's parameters"),
        Entry("cooldown", term("cooldown"), "the policy's parameters"),
        Entry("quarantine", term("quarantine"), "router", "recomputed migrations between these two"),
        Entry("handover", term("handover"), "router"),
    ),
)
