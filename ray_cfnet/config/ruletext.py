"""Rules between features as a person writes them: `a <= b`, and `if a changes then b changes`."""

import difflib
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Literal

FORMS = "`a <= b` or `if a changes then b changes`"

_COMPARISON = re.compile(r"\s*(<=|>=)\s*")
_CONDITION = re.compile(r"if\s+(.+)\s+changes", re.DOTALL)
_THEN = re.compile(r"\s+changes\s+then\s+")


@dataclass(frozen=True)
class Relation:
    """`at_most`: first <= second. `needs`: where the first changes, the second does too."""

    kind: Literal["at_most", "needs"]
    first: str
    second: str

    def __str__(self) -> str:
        if self.kind == "at_most":
            return f"{self.first} <= {self.second}"
        return f"if {self.first} changes then {self.second} changes"


def parse_relation(text: str, names: Collection[str]) -> Relation:
    """Raises ValueError, with the nearest name, for a text that is no rule between two of the features."""
    # A name may hold spaces, dots and even an operator: a reading counts when both its names exist.
    readings = list(_readings(text.strip()))
    if not readings:
        raise ValueError(f"{text!r} is no rule; write {FORMS}")
    known = [reading for reading in readings if reading.first in names and reading.second in names]
    relation = (known or readings)[0]
    unknown = [name for name in (relation.first, relation.second) if name not in names]
    if unknown:
        raise ValueError("; ".join(f"unknown feature {name!r}{_nearest(name, names)}" for name in unknown))
    if relation.first == relation.second:
        raise ValueError(f"{relation.first!r} is related to itself; name two features")
    return relation


def _readings(text: str) -> Iterator[Relation]:
    for sign in _COMPARISON.finditer(text):
        first, second = text[: sign.start()], text[sign.end() :]
        if first and second:
            yield Relation("at_most", *((first, second) if sign[1] == "<=" else (second, first)))
    condition = _CONDITION.fullmatch(text)
    if condition:
        inner = condition[1]
        for then in _THEN.finditer(inner):
            yield Relation("needs", inner[: then.start()], inner[then.end() :])


def _nearest(name: str, names: Collection[str]) -> str:
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return f", did you mean {near[0]!r}?" if near else f" (features: {', '.join(names)})"
