"""How numbers, shares and times are written in a report."""

from datetime import datetime
from typing import Any

_NONE = "-"


def number(given: float | None) -> str:
    if given is None:
        return _NONE
    if isinstance(given, int) or given == 0:
        return f"{given:,.0f}"
    if abs(given) < 0.001:  # no exponents
        return f"{given:.6f}".rstrip("0").rstrip(".")
    return f"{given:,.0f}" if abs(given) >= 100 else f"{given:,.3g}"


def percent(given: float | None) -> str:
    if given is None:
        return _NONE
    if given in (0, 1):
        return f"{100 * given:.0f}\u00a0%"
    digits = 2 if 0 < given < 0.001 or 0.999 < given < 1 else 1
    return f"{100 * given:.{digits}f}\u00a0%"


def seconds(given: float | None) -> str:
    if given is None:
        return _NONE
    if given < 120:
        return f"{given:.1f} s"
    minutes, hours = given / 60, given / 3600
    return f"{minutes:.0f} min" if minutes < 120 else f"{hours:.1f} h"


def value(given: Any) -> str:
    """A value of the table as a person writes it."""
    if isinstance(given, bool) or given is None:
        return _NONE if given is None else str(given).lower()
    return f"{given:,}" if isinstance(given, int) else f"{given:,.6g}" if isinstance(given, float) else str(given)


def day(given: str) -> str:
    return datetime.fromisoformat(given).strftime("%d %b %Y, %H:%M UTC")


def figure(name: str, given: float | None) -> str:
    """A figure of drift in its unit."""
    return percent(given) if name != "distance" or given is None else f"{given:.3g}"


def counted(count: int, what: str) -> str:
    return f"{number(count)} {what}{'' if count == 1 else 's'}"
