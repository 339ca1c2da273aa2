"""A small run of each experiment, and all that the analysis and the commands say of it, frozen.

A refactoring keeps every number. Each folder holds:

    run.tar.xz     the raw artifacts of one run (golden.toml says which), of `capacity` a simulated one, else on engines
    expected/      what `tracon report --again` writes, and what report, status, compare, why, session and whatif print
    fields.txt     every field of every artifact, raw or written, by name
    renames.toml   fields and words that a change renames: old name -> new name

`python -m tests.goldens.update [EXPERIMENT ...]` rewrites `expected/` and `fields.txt` and reports, per document, what
changed beyond the renames. `python -m tests.goldens.fixture RUN_FOLDER` makes a `run.tar.xz` from a new run.

Not covered: the bytes of drawings, the console's screens, and what a run process writes today: the raw artifacts are
those of the day the fixture was made. A new run's `fields.txt` shows where they differ.
"""
