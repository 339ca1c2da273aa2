"""The tables of a run's SQLite file, as the list of steps that leads from an empty file to today's schema."""

from __future__ import annotations

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        "CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
        """CREATE TABLE journal (
            seq INTEGER PRIMARY KEY, t_unix_s REAL NOT NULL, t_mono_ns INTEGER NOT NULL,
            kind TEXT NOT NULL, body TEXT NOT NULL)""",
        """CREATE TABLE run (
            id INTEGER PRIMARY KEY CHECK (id = 1), run TEXT NOT NULL, experiment TEXT NOT NULL, profile TEXT NOT NULL,
            preset TEXT NOT NULL, tracon_version TEXT NOT NULL, state TEXT NOT NULL, reason TEXT NOT NULL, pid INTEGER,
            created_unix_s REAL NOT NULL, started_unix_s REAL, ended_unix_s REAL, active_s REAL NOT NULL,
            running_since_unix_s REAL, changed_seq INTEGER NOT NULL)""",
        """CREATE TABLE stages (
            stage TEXT PRIMARY KEY, ordinal INTEGER NOT NULL, state TEXT NOT NULL, reason TEXT NOT NULL,
            started_unix_s REAL, ended_unix_s REAL) WITHOUT ROWID""",
        """CREATE TABLE cells (
            cell TEXT PRIMARY KEY, ordinal INTEGER NOT NULL, stage TEXT NOT NULL, config TEXT,
            estimated_s REAL NOT NULL, state TEXT NOT NULL, attempt INTEGER NOT NULL, reason TEXT NOT NULL,
            summary TEXT NOT NULL, degraded TEXT NOT NULL, fraction REAL NOT NULL, note TEXT NOT NULL,
            started_unix_s REAL, ended_unix_s REAL) WITHOUT ROWID""",
        """CREATE TABLE attempts (
            cell TEXT NOT NULL, attempt INTEGER NOT NULL, state TEXT NOT NULL, started_unix_s REAL NOT NULL,
            started_active_s REAL NOT NULL, ended_unix_s REAL, spent_s REAL, reason TEXT NOT NULL,
            PRIMARY KEY (cell, attempt)) WITHOUT ROWID""",
        """CREATE TABLE instances (
            instance TEXT PRIMARY KEY, ordinal INTEGER NOT NULL, config TEXT NOT NULL, state TEXT NOT NULL, pid INTEGER,
            pgid INTEGER, process_start REAL, boot_id TEXT NOT NULL, url TEXT NOT NULL, started_by TEXT NOT NULL,
            reason TEXT NOT NULL, started_unix_s REAL NOT NULL, ready_unix_s REAL, ended_unix_s REAL) WITHOUT ROWID""",
        """CREATE TABLE requests (
            request INTEGER PRIMARY KEY, action TEXT NOT NULL, target TEXT NOT NULL, reason TEXT NOT NULL,
            by TEXT NOT NULL, submitted_unix_s REAL NOT NULL, submitted_seq INTEGER NOT NULL, answered_unix_s REAL,
            accepted INTEGER, detail TEXT NOT NULL)""",
        """CREATE TABLE lease (
            id INTEGER PRIMARY KEY CHECK (id = 1), pid INTEGER NOT NULL, process_start REAL NOT NULL,
            start_ticks INTEGER, boot_id TEXT NOT NULL, host TEXT NOT NULL, pid_namespace TEXT NOT NULL,
            acquired_unix_s REAL NOT NULL, heartbeat_unix_s REAL NOT NULL)""",
    ),
)
"""Step N leads from schema N to schema N + 1. A step that was released is never edited: add another."""
