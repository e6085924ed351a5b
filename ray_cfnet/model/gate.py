"""Which metrics a bundle must have to be promoted. Pure: numbers and thresholds in, failed conditions out."""

import math
from typing import Any

from pydantic import BaseModel, ConfigDict

from ray_cfnet import config

_WHERE = {
    "accuracy": ("accuracy",),
    "validity": ("cf", "validity"),
    "proximity": ("cf", "proximity"),
    "fcf_validity": ("fcf", "validity"),
    "fcf_proximity": ("fcf", "proximity"),
    "violations": ("fcf", "violations"),
}
_THRESHOLDS = {
    "min_accuracy": "accuracy",
    "min_validity": "validity",
    "min_fcf_validity": "fcf_validity",
    "max_proximity": "proximity",
    "max_violations": "violations",
}
_COMPARED = {
    "accuracy": ("accuracy",),
    "validity": ("validity", "fcf_validity"),
    "proximity": ("proximity", "fcf_proximity"),
}
_ROUNDING = 1e-9
"""0.85 - 0.005 as floats must not refuse 0.845."""

Figures = dict[str, float | None]


class Failure(BaseModel):
    """A condition that does not hold: the figure, and the limit it had to keep."""

    model_config = ConfigDict(frozen=True)

    condition: str
    value: float | None = None
    limit: float | None = None
    message: str


def figures(metrics: dict[str, Any]) -> Figures:
    """The numbers that promotion looks at; None where a bundle's metrics have no usable number."""
    found: Figures = {}
    for name, path in _WHERE.items():
        value: Any = metrics
        for key in path:
            value = value.get(key) if isinstance(value, dict) else None
        usable = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        found[name] = value if usable else None
    return found


def failures(candidate: Figures, current: Figures | None, promotion: config.Promotion) -> list[Failure]:
    """Every condition that `candidate` fails; `current` is None where there is nothing to compare with."""
    failed = []
    for condition, name in _THRESHOLDS.items():
        limit = getattr(promotion, condition)
        if limit is not None:
            failed.append(_check(f"promotion.{condition}", name, candidate[name], limit, str(limit)))
    for setting, names in _COMPARED.items():
        tolerance = getattr(promotion.tolerance, setting)
        for name in names:
            own = current[name] if current is not None else None
            if tolerance is not None and own is not None:
                sign, limit = ("+", own + tolerance) if setting == "proximity" else ("-", own - tolerance)
                said = f"{limit:.6g} (the current bundle's {own:.6g} {sign} {tolerance:g})"
                failed.append(_check(f"promotion.tolerance.{setting}", name, candidate[name], limit, said))
    return [failure for failure in failed if failure is not None]


def _check(condition: str, name: str, value: float | None, limit: float, said: str) -> Failure | None:
    at_most = name in ("proximity", "fcf_proximity", "violations")
    if value is None:
        problem = f"{name} was not measured, it must be {'at most' if at_most else 'at least'} {said}"
    elif at_most and value > limit + _ROUNDING:
        problem = f"{name} {value:.6g} is above {said}"
    elif not at_most and value < limit - _ROUNDING:
        problem = f"{name} {value:.6g} is below {said}"
    else:
        return None
    return Failure(condition=condition, value=value, limit=limit, message=f"{condition}: {problem}")
