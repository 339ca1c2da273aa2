"""The text says the numbers of the description, and what it does not know."""

from __future__ import annotations

import msgspec

from results.report.content import ReportText
from results.report.document import make_rich_tables
from results.traces.tables import build_tables, format_headline, list_limits
from tests.results.traces.made import count, described


def rows(title: str, **changes: object) -> dict[str, tuple[str, ...]]:
    tables = {table.title: table for table in build_tables(described(**changes))}
    return {row[0]: row[1:] for row in tables[title].rows}


def test_the_numbers_are_those_of_the_description() -> None:
    assert rows("Trace")["requests"] == ("4000",)
    assert rows("Trace")["input / output"] == ("75.0",)
    reuse = rows("Reuse of prefixes")
    assert [reuse[name][0] for name in ("bound, any session", "bound, same session")] == ["80.30 %", "79.60 %"]
    assert [reuse[name][0] for name in ("intra-session", "cross-session", "shared prefix")] == [
        "93.20 %",
        "5.70 %",
        "1.10 %",
    ]
    assert rows("Concurrent decodes") == {
        "p50": ("1.85", "20", "160", "80", "40"),
        "p90": ("8.00", "4", "32", "16", "8"),
        "p95": ("9.60", "4", "32", "16", "8"),
        "p99": ("11.50", "3", "24", "12", "6"),
    }
    assert list(rows("Session skew")) == ["top 1 %", "top 5 %", "top 10 %", "top 25 %", "top 50 %"]
    assert list(rows("Lengths")) == ["input tokens per request", "turns per session"]


def test_what_is_not_known_is_a_dash_with_its_reason_below() -> None:
    without = count(has_sessions=False)
    assert rows("Reuse of prefixes", counted=without)["intra-session"][0] == "-"
    limits = list_limits(described(counted=without))
    limit = next(line for line in limits if line.startswith("The source has no sessions: "))
    assert "reuse.intra_session_share" in limit
    assert "Session skew" not in [table.title for table in build_tables(described(counted=without))]


def test_an_estimate_is_marked_as_one() -> None:
    rough = count(error=1000.0)
    assert "±" in rows("Reuse of prefixes", counted=rough)["bound, any session"][0]
    assert any("one block in 4" in line for line in list_limits(described(counted=rough)))
    assert not any("one block in" in line for line in list_limits(described()))


def test_it_can_be_printed_and_sent_as_json() -> None:
    description = described()
    assert "qwen_coder.jsonl (bailian): 4000 requests of 1000 sessions over 7200.0 s" in format_headline(description)
    make_rich_tables(ReportText(format_headline(description), build_tables(description), list_limits(description)))
    data = msgspec.json.decode(msgspec.json.encode(description))
    assert data["apc_bound_any"] == description.apc_bound_any
    assert data["kv"]["capacity"][3]["concurrent"] == {"Combined 8C": 24, "4P+4D": 12, "6P+2D": 6}
