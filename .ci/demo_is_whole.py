"""Exit with 1 unless the newest run is done with all its cells, none skipped or failed, and the demo printed its page.

The argument is the file with the demo's output.

A degraded cell is done: the client fell behind on a busy machine. It is printed, and fails nothing here.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

CONFIGS, LAUNCHES = 5, 3
TRACON = Path(sys.executable).with_name("tracon")


def main() -> None:
    shown = subprocess.run([TRACON, "status", "--json"], capture_output=True, text=True, check=True, timeout=60)
    status = json.loads(shown.stdout)
    cells = status["cells"]
    wrong = [f"{cell['cell']}: {cell['state']} {cell['reason'] or ''}" for cell in cells if cell["state"] != "done"]
    if status["state"] != "done" or wrong or not cells:
        sys.exit("\n".join([f"the demo's run {status['run']} is {status['state']}", *wrong]))
    launches = Counter(cell["cell"].split("/")[1] for cell in cells if cell["cell"].startswith("confirm/"))
    if len(launches) != CONFIGS or min(launches.values()) < LAUNCHES:
        sys.exit(f"the demo's run {status['run']} has {dict(launches)}, not {CONFIGS} configs in {LAUNCHES} launches")
    output = " ".join(Path(sys.argv[1]).read_text(encoding="utf-8", errors="replace").split())  # the page is folded
    missing = [text for text in ("against plain", "plain_again", "report.html", "tracon report") if text not in output]
    if missing:
        sys.exit(f"the demo's output does not hold its page: no {', '.join(missing)}")
    took_s = status["ended_unix_s"] - status["started_unix_s"]
    print(f"the demo's run {status['run']}: {len(cells)} cells, all done in {took_s:.0f} s, its page printed")
    for cell in cells:
        if cell["degraded"]:
            print(f"degraded: {cell['cell']}: {cell['degraded']}")


if __name__ == "__main__":
    main()
