"""The lines above everything: which run, how it stands, how far it is. They stay live when the rest is frozen."""

from __future__ import annotations

from console import feed
from console import format as say
from console.feed import Picture
from console.glossary import Entry
from console.glyphs import UNICODE, Glyphs
from console.rows.routing import list_alarms_now
from console.widgets.lines import Lines
from console.widgets.table import Span, clip_spans, count_columns
from results.records.events import RunState
from results.records.gpu import UNLIMITED, describe_gpu
from results.report.terms import term
from state.lease import HEARTBEAT_S, LeaseState
from state.model import RunView
from state.view import compute_elapsed_s, estimate_eta_s, progress

Line = list[Span]
GPU_STALE_S = 3.0
"""An older sample of the GPUs is not of now: nothing is being measured."""
HEADER_ENTRIES = (
    Entry("progress", term("progress"), "plan and journal"),
    Entry("ETA", term("ETA"), "plan and journal"),
    Entry(
        "GPU",
        term("GPU sample"),
        "NVML, gpu.csv in the run's folder",
        "ends with what limits its clocks: the numbers of that second are a slower GPU's",
    ),
    Entry("lease", term("lease"), "state file", "dead: no process measures anything; resume continues from here"),
)


class RunHeader(Lines):
    """Three lines: name and state; progress, time and ETA; what needs attention, else the newest event."""

    DEFAULT_CSS = """
    RunHeader { height: 3; padding: 0 1; }
    """

    def __init__(self, *, glyphs: Glyphs = UNICODE) -> None:
        super().__init__()
        self._glyphs = glyphs

    def show(self, picture: Picture, badges: tuple[Span, ...] = (), name: str = "") -> None:
        """Draw the picture's header; `badges` are the screen's own."""
        width = max(20, self.size.width - 2)
        lines = make_header_lines(picture, badges, self._glyphs, width, feed.now_unix_s(), name)
        self.show_lines(*lines, layout=False)


def make_header_lines(
    picture: Picture, badges: tuple[Span, ...], glyphs: Glyphs, width: int, now_unix_s: float, name: str = ""
) -> tuple[tuple[Span, ...], ...]:
    """The three lines as spans, each at most `width` wide."""
    if picture.loading:
        text = picture.trouble or f"reading the journal{f': {picture.folded} events' if picture.folded else ''} ..."
        return (((name, "bold"),), ((text, "bad" if picture.trouble else "dim"),), badges)
    return (
        _fit_ends(_make_identity_line(picture, glyphs, width), _make_standing_line(picture, glyphs), width),
        clip_spans(tuple(_progress_line(picture, glyphs, width, now_unix_s)), width),
        clip_spans(tuple(_make_attention_line(picture, badges, glyphs)), width),
    )


def _make_identity_line(picture: Picture, glyphs: Glyphs, width: int) -> Line:
    plan, pace = picture.view.plan, picture.view.pace
    paced = f"{pace:g}x " if pace and picture.live else ""
    parts: Line = [(f"SIMULATED {paced}", "warn")] if plan.inputs.get("simulated") else []
    parts.append((picture.view.run, "bold"))
    if width >= 100:
        parts.append((f"   {plan.experiment} {glyphs.dot} {plan.profile} {glyphs.dot} {plan.preset}", "dim"))
    return parts


def _make_standing_line(picture: Picture, glyphs: Glyphs) -> Line:
    view = picture.view
    text, tone = glyphs.state(view.state)
    if view.pause == "pausing":
        text, tone = f"{text}, pausing", "warn"
    return [(text, tone), ("   ", ""), *_make_lease_line(picture.lease, view.state)]


def _make_lease_line(lease: LeaseState | None, state: RunState) -> Line:
    if lease is None or lease.state == "none":
        return [("no process", "warn" if state in (RunState.RUNNING, RunState.PAUSED) else "dim")]
    if lease.state == "dead":
        return [(f"process {lease.pid} is gone", "bad")]
    if lease.age_s is not None and lease.age_s > 3 * HEARTBEAT_S:
        return [(f"pid {lease.pid} silent for {say.age(lease.age_s)}", "warn")]
    return [(f"live, pid {lease.pid}", "good")]


def _progress_line(picture: Picture, glyphs: Glyphs, width: int, now_unix_s: float) -> Line:
    view = picture.view
    at = now_unix_s if picture.live else view.last_t_unix_s
    done = progress(view)
    wide = width >= 100
    full, empty = say.bar(done.fraction, 34 if wide else 14, glyphs.full, glyphs.empty)
    parts: Line = [
        (full, "bad" if view.state is RunState.FAILED else "live"),
        (empty, "faint"),
        (f"  {done.fraction * 100:.0f} %", "bold"),
        (f"   {done.ended}/{done.total} cells", ""),
        ("   elapsed " if wide else "   ", "dim"),
        (say.duration(compute_elapsed_s(view, at)), ""),
    ]
    left = estimate_eta_s(view, at)
    if left and view.state not in (RunState.DONE, RunState.FAILED):
        parts += [("   about " if wide else ", ~", "dim"), (say.duration(left), ""), (" left", "dim")]
        if wide and picture.live and view.state is RunState.RUNNING:
            parts.append((f", until {say.clock(at + left, seconds=False)}", "dim"))
    return [*parts, *_make_gpu_spans(view, at)]


def _make_gpu_spans(view: RunView, at_unix_s: float) -> Line:
    """Each GPU in the last seconds; what limits its clocks is a warning. Empty where none was sampled."""
    if view.gpus_unix_s is None or at_unix_s - view.gpus_unix_s > GPU_STALE_S:
        return []
    tones = ["dim" if sample.limited_by in (None, UNLIMITED) else "warn" for sample in view.gpus]
    return [(f"   {describe_gpu(sample)}", tone) for sample, tone in zip(view.gpus, tones, strict=True)]


def _make_attention_line(picture: Picture, badges: tuple[Span, ...], glyphs: Glyphs) -> Line:
    view = picture.view
    parts: Line = list(badges)
    parts += [(f"{alarm}  ", "warn") for alarm in list_alarms_now(picture)]
    for request in view.open_requests:
        parts.append((f"{request.action.replace('_', ' ')} {request.target} requested  ".replace("  ", " "), "warn"))
    if view.state in (RunState.RUNNING, RunState.PAUSED) and not picture.live:
        parts.append(("no process works on this run: r resumes it  ", "bad"))
    elif view.reason and view.state in (RunState.FAILED, RunState.INTERRUPTED, RunState.PAUSED):
        parts.append((f"{view.reason}  ", "warn"))
    if not parts and view.feed:
        line = view.feed[-1]
        tone = {"warning": "warn", "error": "bad"}.get(line.level, "dim")
        parts = [
            (f"{say.clock(line.t_unix_s)} {glyphs.sign(line.level)} ", "dim"),
            (f"{line.subject}  {line.text}", tone),
        ]
    return parts


def _fit_ends(left: Line, right: Line, width: int) -> tuple[Span, ...]:
    """Both ends of one line; the left one gives way."""
    clipped = clip_spans(tuple(left), max(1, width - count_columns(right) - 2))
    return (*clipped, (" " * max(1, width - count_columns(clipped) - count_columns(right)), ""), *right)
