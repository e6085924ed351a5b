"""What the configuration says about one feature, and about two of them: what a change may look like."""

import math
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Annotated, Any, Literal, TypeGuard

from pydantic import Field, field_validator

from ray_cfnet.config.ruletext import Relation, parse_relation
from ray_cfnet.config.section import Fault, Label, Place, Section, fault


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _room(written: Any) -> tuple[float | None, float | None]:
    """A max_change as (in the column's unit, in percent of the row's own value); what it is not is None."""
    percent = re.fullmatch(r"([0-9]*\.?[0-9]+)\s*%", written.strip()) if isinstance(written, str) else None
    if percent:
        return None, float(percent[1])
    return (float(written) if _is_number(written) else None), None


def _end(feature: dict[str, Any], side: int) -> float:
    """The lower (0) or upper (1) bound of a feature as it is written."""
    bounds = feature.get("bounds")
    end: Any = bounds[side] if isinstance(bounds, list | tuple) and len(bounds) == 2 else None
    return float(end) if _is_number(end) else (-math.inf, math.inf)[side]


def _twice(labels: list[Any]) -> str:
    return ", ".join(sorted({str(label) for label in labels if labels.count(label) > 1}))


class ContinuousFeature(Section):
    """A number. Integers stay integers; other columns keep the decimals seen in training."""

    kind: Literal["continuous"]
    step: float | None = Field(
        default=None, gt=0, description="changed values are multiples of this; default: 1 for integers"
    )
    decimals: int | None = Field(default=None, ge=0, le=12, description="of changed values; 2 is the same as step 0.01")
    allowed: list[float] | None = Field(
        default=None, min_length=1, description="a changed value is one of these; instead of step and decimals"
    )
    max_change: float | str | None = Field(
        default=None, description="a value changes by this much at most: 10 in its unit, or 20% of the row's own value"
    )
    tolerance: float | None = Field(
        default=None, gt=0, description="a smaller change is none: the value stays (the paper's b)"
    )
    direction: Literal["any", "increase", "decrease"] = "any"
    bounds: tuple[float | None, float | None] | None = Field(
        default=None, description="[lower, upper]; null leaves a side open; rows outside are rejected"
    )
    immutable: bool = False

    @field_validator("bounds")
    @classmethod
    def _ordered(cls, bounds: tuple[float | None, float | None] | None) -> Any:
        if bounds is not None:
            lower, upper = bounds
            if lower is not None and upper is not None and lower > upper:
                raise fault(f"lower {lower:g} > upper {upper:g}")
        return bounds

    @field_validator("max_change", mode="before")
    @classmethod
    def _above_zero(cls, written: Any) -> Any:
        size = max((part for part in _room(written) if part is not None), default=0)
        if written is not None and size <= 0:
            raise fault(f"{written!r} is neither a number above 0 nor a percentage such as 20%")
        return written

    @property
    def room(self) -> tuple[float | None, float | None]:
        """`max_change` in the column's unit, and in percent of the row's own value."""
        return _room(self.max_change)

    @classmethod
    def _faults_between(cls, data: dict[str, Any]) -> Iterator[Fault]:
        said = [key for key in ("step", "decimals", "allowed") if data.get(key) is not None]
        for key in said[1:]:
            yield key, f"contradicts {said[0]}, which also says what values a change may lead to; remove one"
        lower, upper = _end(data, 0), _end(data, 1)
        most, percent = _room(data.get("max_change"))
        if percent is not None and math.isfinite(lower) and math.isfinite(upper):
            most = percent / 100 * max(abs(lower), abs(upper))
        least, step, decimals = data.get("tolerance"), data.get("step"), data.get("decimals")
        if step is None and isinstance(decimals, int) and 0 <= decimals <= 12:
            step = float(f"1e-{decimals}")
        for key, size in (("tolerance", least), ("step", step)):
            if most is not None and _is_number(size) and most < size:
                yield "max_change", f"{most:g} is less than the {key} {size:g}: nothing could ever change"
        if lower == upper and data.get("immutable") is not True:
            yield "bounds", f"{lower:g} is the only value left: nothing could ever change; declare immutable: true too"
        if _is_number(least) and lower <= upper and least > upper - lower:
            yield "tolerance", f"{least:g} is wider than the bounds: nothing could ever change"
        allowed = data.get("allowed")
        values: list[Any] = allowed if isinstance(allowed, list) else []
        outside = [_is_number(v) and not lower <= v <= upper for v in values]
        if outside and all(outside):
            yield "allowed", "every value lies outside of the bounds: nothing could ever change"
        elif values and all(map(_is_number, values)):
            if data.get("direction") == "increase" and max(values) <= lower:
                yield "allowed", f"no value lies above the lower bound {lower:g}, and it may only increase"
            if data.get("direction") == "decrease" and min(values) >= upper:
                yield "allowed", f"no value lies below the upper bound {upper:g}, and it may only decrease"


class CategoricalFeature(Section):
    """One of a set of values, learned from the training split, or listed in `order`."""

    kind: Literal["categorical"]
    order: list[Label] | None = Field(default=None, description="every category, from lowest to highest")
    allowed: list[Label] | None = Field(
        default=None, min_length=1, description="the categories a change may lead to; default: all"
    )
    forbidden_transitions: dict[Label, list[Label]] = Field(
        default={}, description="category -> categories it may not change to, e.g. {Married: [Single]}"
    )
    direction: Literal["any", "increase", "decrease"] = "any"
    immutable: bool = False

    @field_validator("order")
    @classmethod
    def _distinct(cls, order: list[Label] | None) -> list[Label] | None:
        if order is not None:
            if len(order) < 2:
                raise fault("an order needs at least two categories")
            if _twice(order):
                raise fault(f"listed twice: {_twice(order)}")
        return order

    @classmethod
    def _faults_between(cls, data: dict[str, Any]) -> Iterator[Fault]:
        if data.get("direction") in ("increase", "decrease") and not data.get("order"):
            yield "direction", f"{data['direction']} needs an order that lists the categories from low to high"
        forbidden, allowed, order = data.get("forbidden_transitions"), data.get("allowed"), data.get("order")
        forbidden = forbidden if isinstance(forbidden, dict) else {}
        named: list[tuple[Place, Any]] = [("allowed", label) for label in allowed] if isinstance(allowed, list) else []
        for start, ends in forbidden.items():
            place: Place = ("forbidden_transitions", start if isinstance(start, int) else str(start))
            named.append((place, start))
            for end in ends if isinstance(ends, list) else ():
                named.append((place, end))
                if end == start:
                    yield place, f"{start!r} may always stay as it is; name other categories"
        if isinstance(order, list):
            for where, label in named:
                if label not in order:
                    yield where, f"{label!r} is not in the order"


Feature = Annotated[ContinuousFeature | CategoricalFeature, Field(discriminator="kind")]


def rule_faults(rules: list[Any], features: dict[str, Any]) -> Iterator[Fault]:
    names = [str(name) for name in features]
    seen: dict[Relation, int] = {}
    lowest = _lowest(rules, features)
    for place, text in enumerate(rules):
        key = ("rules", place)
        try:
            relation = parse_relation(text, names) if isinstance(text, str) else None
        except ValueError as error:
            yield key, str(error)
            continue
        if relation is None:
            continue
        if seen.setdefault(relation, place) != place:
            yield key, f"says the same as rule {seen[relation] + 1}; remove one"
        first, second = (_as_written(features[name]) for name in (relation.first, relation.second))
        if relation.kind == "at_most":
            for name, feature in ((relation.first, first), (relation.second, second)):
                if feature.get("kind") == "categorical":
                    yield key, f"{name} is categorical, and only numbers can be compared"
            least, most = lowest[relation.first], _end(second, 1)
            if least > most:
                yield (
                    key,
                    f"{relation.first} is at least {least:g}, {relation.second} at most {most:g}: no row can keep it",
                )
        elif second.get("immutable") is True and first.get("immutable") is not True:
            yield (
                key,
                f"{relation.second} is immutable, so {relation.first} could never change; declare that, or remove one",
            )


def _lowest(rules: list[Any], features: dict[str, Any]) -> dict[str, float]:
    """What each feature is at least, also by way of others that it may not fall below."""
    lowest = {str(name): _end(_as_written(feature), 0) for name, feature in features.items()}
    relations = []
    for text in rules:
        with suppress(ValueError):
            relations += [parse_relation(text, lowest)] if isinstance(text, str) else []
    for _ in relations:  # the longest chain
        for relation in relations:
            if relation.kind == "at_most":
                lowest[relation.second] = max(lowest[relation.second], lowest[relation.first])
    return lowest


def _as_written(feature: Any) -> dict[str, Any]:
    return feature if isinstance(feature, dict) else {}
