"""Real runs whose processes are killed, stopped and starved at random moments, and what that leaves.

    python -m tests.benchmarks.chaos [--batch 46] [--seed 1] [--kind "kill run"] [--each 20] [--only 3 | --next-seed]
                                      [--seconds 300] [--keep FOLDER]
    python -m tests.benchmarks.chaos --table

A batch is N faults drawn from its seed, in campaigns of at most `--each`: a campaign starts a run on real engines, lets
it meet its faults as their moments come, resumes it to its end, and counts what was lost or left. Every finished
campaign is a line of tests/chaos/journal.jsonl; the same command again, also on another day, continues with those that
are missing, and repeats those whose last line has a defect. Where none is left it prints that. `--next-seed` continues
with the first seed, from `--seed` on, that has a campaign left. `--only` repeats one campaign of the batch. `--table`
writes the tables of docs/reliability.md from the journal.

Two batches at once need ports of their own: `PYTEST_XDIST_WORKER=gw1` for the second, and a journal (`--journal`).

`--kind take` is another process on an engine's port, which no batch has unless it is named. `--kind ""` names every
kind.

A fault of the disk needs a file system of its own: root, and the right to mount. Where it cannot be mounted that kind
is left out, and the command says so.
"""

from __future__ import annotations

import argparse
import os
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import count
from pathlib import Path

from runners.campaign.provenance import commit_of
from tests.chaos import table
from tests.chaos.campaign import Campaign, Outcome
from tests.chaos.faults import DISK, KINDS, OTHER_KINDS, Script, draw_batch
from tests.chaos.processes import Disk

KEPT = (stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK)


def note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def play_script(script: Script, keep: Path | None = None) -> tuple[Outcome, float]:
    """One campaign in a workspace of its own; its outcome and how long it took.

    Its runs go to the folder `keep` where it counted a defect.
    """
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="tracon-chaos-", ignore_cleanup_errors=True) as name:
        disk = Disk(Path(name))
        try:
            if disk.reason and any(fault.action == "disk" for fault in script.faults):
                raise SystemExit(f"no disk of its own can be mounted ({disk.reason}): leave {DISK!r} out with --kind")
            outcome = Campaign(script, Path(name), None if disk.reason else disk, note).play()
            if keep and outcome.findings.sentences:
                shutil.copytree(name, keep / Path(name).name, symlinks=True, ignore=only_files)
        finally:
            disk.close()
    return outcome, time.monotonic() - began_s


def only_files(folder: str, names: list[str]) -> list[str]:
    """What `copytree` leaves out: sockets and other special files."""
    return [name for name in names if stat.S_IFMT(os.lstat(Path(folder, name)).st_mode) not in KEPT]


def name_commit() -> str:
    """The commit of the code that a campaign meets. The journal, which grows with each campaign, is none of it."""
    commit = commit_of(table.ROOT, ignored=str(table.JOURNAL.relative_to(table.ROOT)))
    return f"{(commit.sha or 'unknown')[:10]}{' and changes' if commit.reason else ''}"


def make_entry(
    options: argparse.Namespace, kinds: Sequence[str], script: Script, outcome: Outcome, commit: str, duration_s: float
) -> table.Entry:
    met = tuple(
        table.Met(
            one.fault.kind, one.fault.moment, one.fault.delay_s, one.fault.hold_s, one.fault.draw, one.cell, one.after_s
        )
        for one in outcome.met
    )
    return table.Entry(
        seed=options.seed,
        count=options.batch,
        kinds=tuple(kinds),
        each=options.each,
        number=script.number,
        experiment=script.experiment,
        commit=commit,
        t_unix_s=round(time.time(), 1),
        duration_s=round(duration_s, 1),
        met=met,
        missed=tuple(fault.kind for fault in outcome.missed),
        runs=outcome.runs,
        resumes=outcome.resumes,
        retried=tuple(outcome.retried),
        cells=outcome.cells,
        counts=outcome.findings.counts,
        findings=outcome.findings.sentences,
        attempts=outcome.attempts,
    )


def list_left(options: argparse.Namespace, kinds: Sequence[str], seed: int) -> list[Script]:
    """The campaigns of a batch that the journal does not have, or whose newest line has a defect."""
    entries = table.newest_lines(table.read_lines(options.journal))
    done = {entry.key for entry in entries if not entry.findings}
    scripts = draw_batch(seed, options.batch, kinds, options.each)
    return [one for one in scripts if (seed, options.batch, tuple(kinds), options.each, one.number) not in done]


def choose_seed(options: argparse.Namespace, kinds: Sequence[str]) -> int:
    """The seed of the batch to play; a batch that is done is passed over only with `--next-seed`."""
    first = int(options.seed)
    return next(seed for seed in count(first) if list_left(options, kinds, seed)) if options.next_seed else first


def choose_scripts(options: argparse.Namespace, kinds: Sequence[str]) -> list[Script]:
    """The campaigns to play; none, with a note that says why, if the batch is done."""
    if options.only is not None:
        scripts = draw_batch(options.seed, options.batch, kinds, options.each)
        return [script for script in scripts if script.number == options.only]
    left = list_left(options, kinds, options.seed)
    if not left:
        note(
            f"seed {options.seed}: every campaign of this batch is done. Begin another batch with --seed, or with "
            "--next-seed the first that is not done; repeat a campaign with --only."
        )
    return left


def run_batch(options: argparse.Namespace, kinds: Sequence[str]) -> bool:
    """Play the campaigns that are left of the batch; whether none of those played counted a defect."""
    began_s, clean = time.monotonic(), True
    for script in choose_scripts(options, kinds):
        if options.seconds and time.monotonic() - began_s > options.seconds:
            note("the time is over: the same command continues")
            break
        note(f"seed {options.seed}, campaign {script.number}: {script.experiment}, {len(script.faults)} faults")
        commit = name_commit()  # before: the tree may change while the campaign is played
        outcome, duration_s = play_script(script, options.keep)
        entry = make_entry(options, kinds, script, outcome, commit, duration_s)
        table.append_entry(options.journal, entry)
        for sentence in entry.findings:
            note(sentence)
        note(f"{len(entry.met)} faults in {duration_s:.0f} s, {sum(entry.counts.values())} defects")
        clean = clean and not entry.findings
    return clean


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=2 * len(KINDS), help="faults of the batch (default 46)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kind", action="append", default=[], help="only kinds that begin so (repeatable)")
    parser.add_argument("--each", type=int, default=20, help="faults per campaign at most (default 20)")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--only", type=int, help="this campaign of the batch, whether the journal has it or not")
    which.add_argument("--next-seed", action="store_true", help="pass over seeds whose batch is done")
    parser.add_argument("--seconds", type=float, default=0.0, help="begin no campaign after it (0 = no limit)")
    parser.add_argument("--journal", type=Path, default=table.JOURNAL)
    parser.add_argument("--keep", type=Path, help="folder that receives the runs of a campaign with a defect")
    parser.add_argument("--table", action="store_true", help="write the tables of docs/reliability.md, run nothing")
    options = parser.parse_args()
    if options.batch < 1:  # every seed of an empty batch is done: --next-seed would find none
        parser.error(f"--batch is {options.batch}: a batch has at least 1 fault")
    if options.table:
        tables = table.make_tables(table.read_lines(options.journal))
        table.PAGE.write_text(table.page_with(tables, table.PAGE.read_text(encoding="utf-8")), encoding="utf-8")
        return
    kinds = [kind for kind in (*KINDS, *OTHER_KINDS) if any(map(kind.startswith, options.kind))]
    if options.kind and not kinds:
        parser.error(f"no kind begins so; there are {', '.join((*KINDS, *OTHER_KINDS))}")
    options.seed = choose_seed(options, kinds or KINDS)
    sys.exit(0 if run_batch(options, kinds or KINDS) else 1)


if __name__ == "__main__":
    main()
