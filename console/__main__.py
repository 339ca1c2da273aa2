"""`python -m console [RUN]`: the operator console."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from results.records.visible import visible
from state.errors import StateError

if TYPE_CHECKING:
    from console.app import TraconApp


def main(argv: list[str] | None = None) -> int:
    """Open the console; returns the exit code."""
    args = make_parser().parse_args(argv)
    if args.low_bandwidth:
        os.environ.setdefault("TEXTUAL_COLOR_SYSTEM", "standard")
    from console.app import TraconApp
    from console.app_protocol import Options
    from state.workspace import Workspace, find_default_root

    try:
        run = Workspace(args.workspace or find_default_root()).find(args.run) if args.run else None
    except StateError as error:
        print(visible(f"tracon: {error}. {error.remedy}"), file=sys.stderr)
        return error.exit_code
    options = Options(args.workspace, args.read_only, args.low_bandwidth, args.ascii)
    app = TraconApp(options, None if run is None else run.resolve())
    if args.screenshot:
        return _save_screenshot(app, args.screenshot, args.size, args.press)
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        print("tracon: the console needs a terminal. `tracon watch` follows a run without one", file=sys.stderr)
        return 2
    app.run(mouse=not args.no_mouse)
    return app.return_code or 0


def make_parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="tracon console", description="Watch and steer runs. Leaving the console never touches a run."
    )
    made.add_argument(
        "run", nargs="?", help="run id, a unique beginning of it, or its folder; without it, the list of runs"
    )
    made.add_argument(
        "--workspace", "-w", type=Path, help="folder of runs (default: $TRACON_WORKSPACE or the XDG state folder)"
    )
    made.add_argument("--read-only", action="store_true", help="watch only: no key changes a run")
    made.add_argument(
        "--low-bandwidth", action="store_true", help="draw every 2 s, with block characters and 16 colors"
    )
    made.add_argument("--no-mouse", action="store_true", help="leave the mouse to the terminal")
    made.add_argument("--ascii", action="store_true", help="no characters beyond ASCII for states, bars and plots")
    made.add_argument("--screenshot", type=Path, metavar="FILE.svg", help=argparse.SUPPRESS)
    made.add_argument("--size", type=_parse_size, default=(120, 40), metavar="120x40", help=argparse.SUPPRESS)
    made.add_argument("--press", default="", metavar="KEYS", help=argparse.SUPPRESS)
    return made


def _parse_size(text: str) -> tuple[int, int]:
    width, _, height = text.partition("x")
    return int(width), int(height)


def _save_screenshot(app: TraconApp, file: Path, size: tuple[int, int], keys: str) -> int:
    """Draw one frame without a terminal, after pressing `keys` (comma-separated), and save it."""
    from textual.pilot import Pilot

    frames: list[str] = []

    async def shoot(pilot: Pilot[object]) -> None:
        await app.await_settled()
        for key in filter(None, keys.split(",")):
            await pilot.press(key)
            await pilot.pause()
            await app.await_settled()
        await pilot.pause(1.2)
        frames.append(app.export_screenshot(title=""))
        app.exit()

    app.run(headless=True, size=size, auto_pilot=shoot)
    for frame in frames:
        file.write_text(frame, encoding="utf-8")
    return app.return_code or 0


if __name__ == "__main__":
    sys.exit(main())
