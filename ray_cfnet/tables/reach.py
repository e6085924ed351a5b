"""Which values a number may get: an interval for each row, and in it the steps, the listed values, or all of them."""

import numpy as np

from ray_cfnet.tables.schema import NARROW_TYPES, Continuous, FloatArray, Grid


def reach(x: FloatArray, feature: Continuous) -> tuple[FloatArray, FloatArray]:
    """The lowest and highest value that type, bounds, direction and max_change leave to each row."""
    (lower, upper), (least, most) = feature.bounds, feature.type_range
    lowest = np.full_like(x, least if lower is None else max(lower, least))
    highest = np.full_like(x, most if upper is None else min(upper, most))
    room = largest_change(x, feature)
    if room is not None:
        if feature.grid is not None or feature.allowed is not None:
            room = room + rounding(x, room, feature)
        lowest, highest = np.maximum(lowest, x - room), np.minimum(highest, x + room)
    if feature.direction == "increase":
        lowest = np.maximum(lowest, x)
    elif feature.direction == "decrease":
        highest = np.minimum(highest, x)
    return lowest, highest


def largest_change(x: FloatArray, feature: Continuous) -> FloatArray | None:
    """How far each row may move; None: as far as it likes."""
    if feature.max_change is not None:
        return np.full_like(x, feature.max_change)
    if feature.max_change_percent is not None:
        return np.abs(x) * feature.max_change_percent / 100
    return None


def rounding(x: FloatArray, change: FloatArray | float, feature: Continuous) -> FloatArray:
    """How much larger or smaller a change of this size can look because both its ends were rounded."""
    return 2 * feature.epsilon * (np.abs(x) + change)


def nearest_in(candidate: FloatArray, feature: Continuous, lowest: FloatArray, highest: FloatArray) -> FloatArray:
    """The values in [lowest, highest] that a change may lead to, nearest to the candidates; NaN where there is none."""
    if feature.allowed is not None:
        return _listed(candidate, np.array(feature.allowed), lowest, highest)
    if feature.grid is not None:
        return _stepped(candidate, feature, feature.grid, lowest, highest)
    found = _typed_within(np.clip(candidate, lowest, highest), feature, lowest, highest)
    return np.where(lowest <= highest, found, np.nan)


def _listed(candidate: FloatArray, values: FloatArray, lowest: FloatArray, highest: FloatArray) -> FloatArray:
    first, last = np.searchsorted(values, lowest), np.searchsorted(values, highest, side="right") - 1
    nearest = np.searchsorted((values[:-1] + values[1:]) / 2, candidate)
    return np.where(first <= last, values[np.clip(nearest, first, last)], np.nan)


def _stepped(
    candidate: FloatArray, feature: Continuous, grid: Grid, lowest: FloatArray, highest: FloatArray
) -> FloatArray:
    first, last = np.rint(grid.index(lowest)), np.rint(grid.index(highest))
    # The written value at an end may lie just outside; the next one does not.
    first += feature.typed(grid.value(first)) < lowest
    last -= feature.typed(grid.value(last)) > highest
    found = feature.typed(grid.value(np.clip(np.rint(grid.index(candidate)), first, last)))
    return np.where(first <= last, found, np.nan)


def _typed_within(values: FloatArray, feature: Continuous, lowest: FloatArray, highest: FloatArray) -> FloatArray:
    narrow = NARROW_TYPES.get(feature.arrow_type)
    if narrow is None:
        return values
    typed = values.astype(narrow)
    typed = np.where(typed > highest, np.nextafter(typed, narrow(-np.inf)), typed)
    typed = np.where(typed < lowest, np.nextafter(typed, narrow(np.inf)), typed)
    return np.where(typed <= highest, typed.astype(np.float64), np.nan)


def within_limit(x: FloatArray, limit: FloatArray, feature: Continuous, below: bool) -> FloatArray:
    """The permitted values up to a limit (`below`), or from it on, nearest to it; NaN where there is none."""
    fits = (x <= limit) if below else (x >= limit)
    if feature.immutable:
        return np.where(fits, x, np.nan)
    lowest, highest = reach(x, feature)
    stepped = feature.grid is not None or feature.allowed is not None
    give = rounding(x, feature.tolerance, feature)
    # Where x does not fit, its value has to change, and not by less than the tolerance.
    gap = feature.tolerance - (give if stepped and feature.tolerance else 0.0)
    if below:
        highest = np.minimum(highest, np.where(fits, limit, np.minimum(limit, x - gap)))
    else:
        lowest = np.maximum(lowest, np.where(fits, limit, np.maximum(limit, x + gap)))
    found = nearest_in(limit, feature, lowest, highest)
    nearer = ((found > x) if below else (found < x)) & (np.abs(found - x) >= feature.tolerance - give)
    return np.where(fits & ~nearer, x, found)
