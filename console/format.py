"""How numbers become text: one place for units, significant digits and the sign for "not measured"."""

from __future__ import annotations

import time

from results.records.named_number import NOT_MEASURED, digits


def ms(seconds: float | None) -> str:
    """Seconds as milliseconds."""
    return digits(None if seconds is None else seconds * 1e3)


def short_ms(seconds: float | None) -> str:
    """Milliseconds in at most four characters: from 10 s on, whole seconds with their unit."""
    return ms(seconds) if seconds is None or seconds < 9.9995 else f"{seconds:.0f}s"


def us_as_ms(microseconds: float | None) -> str:
    """Microseconds as milliseconds."""
    return digits(None if microseconds is None else microseconds / 1e3)


def whole(value: float | None) -> str:
    return NOT_MEASURED if value is None else f"{value:.0f}"


def tokens(count: float | None) -> str:
    """A count of tokens: `950`, `12.3k`, `1.20M`."""
    if count is None:
        return NOT_MEASURED
    if abs(count) < 1_000:
        return f"{count:.0f}"
    return f"{digits(count / 1e6)}M" if abs(count) >= 999_500 else f"{digits(count / 1e3)}k"


def data(size_bytes: float | None) -> str:
    """An amount of data with its unit: `3.15 MB`, `10.8 GB`."""
    if size_bytes is None:
        return NOT_MEASURED
    return f"{digits(size_bytes / 1e9)} GB" if abs(size_bytes) >= 9.995e8 else f"{digits(size_bytes / 1e6)} MB"


def percent(fraction: float | None) -> str:
    """0..1 as a percentage without its sign."""
    return NOT_MEASURED if fraction is None else f"{fraction * 100:.0f}"


def duration(seconds: float | None) -> str:
    """`45 s`, `9 min 30 s`, `4 h 52 min`."""
    if seconds is None:
        return NOT_MEASURED
    rest = max(0, round(seconds))
    if rest < 60:
        return f"{rest} s"
    minutes, rest = divmod(rest, 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min"


def age(seconds: float) -> str:
    """How old something is, as short as possible: `4s`, `12m`, `3h`, `2d`."""
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "m")):
        if seconds >= size:
            return f"{int(seconds // size)}{unit}"
    return f"{max(0, int(seconds))}s"


def clock(unix_s: float | None, seconds: bool = True) -> str:
    """The local time of day."""
    return _format_time(unix_s, "%H:%M:%S" if seconds else "%H:%M")


def moment(unix_s: float | None) -> str:
    """The local date and time."""
    return _format_time(unix_s, "%Y-%m-%d %H:%M:%S")


def _format_time(unix_s: float | None, form: str) -> str:
    try:
        return NOT_MEASURED if unix_s is None else time.strftime(form, time.localtime(unix_s))
    except (OverflowError, OSError, ValueError):  # a damaged row: no such year
        return NOT_MEASURED


def bar(fraction: float, width: int, full: str, empty: str) -> tuple[str, str]:
    """The filled and the empty part of a progress bar; together `width` characters."""
    filled = round(max(0.0, min(1.0, fraction)) * width)
    return full * filled, empty * (width - filled)
