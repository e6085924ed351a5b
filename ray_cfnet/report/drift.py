"""How a run compares with those before it, from their manifests alone: figures, limits and plain sentences."""

from statistics import mean, median, pstdev
from typing import Any

from ray_cfnet.report.wording import figure, percent

_BEFORE = 7
"""Runs to compare with: a week of nights."""
_SPREADS = 3.0
"""A figure is unusual beyond so many standard deviations of the earlier ones ..."""
_FLOORS = {"prediction": 0.02, "validity": 0.01, "distance": 0.10, "mix": 0.10, "rejects": 0.01}
"""... but never within this: shares by their difference, the distance by its relative one."""


def compare(runs: list[dict[str, Any]], run: dict[str, Any]) -> dict[str, Any]:
    """A run against the complete ones before it: `checks`, `history`, and a verdict in words."""
    done = [one for one in runs if one.get("state") == "complete" and one["rows_out"]]
    before = [one for one in done if (one["finished_at"], one["run_id"]) < (run["finished_at"], run["run_id"])][
        -_BEFORE:
    ]
    label = _followed_label(run)
    history = [_figures(one, label) for one in [*before, run]]
    checks = [
        _check("prediction", f"rows predicted as {label}", history),
        _check("validity", "rows in need of a way that get one", history),
        _check("distance", "mean distance of a way", history),
        _check("rejects", "rejected rows", history),
        _mix_check(before, run),
    ]
    known = [check for check in checks if check["before"] is not None or check["name"] == "mix"]
    unusual = [check for check in known if check["is_unusual"]]
    return {
        "label": label,
        "before": len(before),
        "other_models": len({one["model_id"] for one in before} - {run["model_id"]}),
        "history": history,
        "checks": checks,
        "unusual": unusual,
        "verdict": _verdict(len(before), unusual),
    }


def _followed_label(run: dict[str, Any]) -> str:
    """The class whose share is followed: the desired one, else the one predicted most often."""
    desired = (run.get("table") or {}).get("desired", "opposite")
    predicted: dict[str, int] = run.get("predicted") or {}
    if desired != "opposite":
        return str(desired)
    return max(sorted(predicted), key=lambda name: predicted[name], default="?")


def _figures(run: dict[str, Any], label: str) -> dict[str, Any]:
    predicted: dict[str, int] = run.get("predicted") or {}
    return {
        "run_id": run["run_id"],
        "finished_at": run["finished_at"],
        "model_id": run["model_id"],
        "prediction": predicted.get(label, 0) / sum(predicted.values()) if predicted else None,
        "validity": run["fcf_validity"],
        "distance": run["mean_fcf_distance"],
        "rejects": run["rows_rejected"] / run["rows_in"] if run["rows_in"] else None,
    }


def _check(name: str, title: str, history: list[dict[str, Any]]) -> dict[str, Any]:
    now = history[-1][name]
    earlier = [one[name] for one in history[:-1] if one[name] is not None]
    check = {"name": name, "title": title, "now": now, "before": median(earlier) if earlier else None}
    if now is None or not earlier:
        return {**check, "limit": None, "is_unusual": False}
    floor = _FLOORS[name] * (check["before"] if name == "distance" else 1.0)
    limit = max(_SPREADS * pstdev(earlier), floor)
    return {**check, "limit": limit, "is_unusual": abs(now - check["before"]) > limit}


def _mix_check(before: list[dict[str, Any]], run: dict[str, Any]) -> dict[str, Any]:
    """The mix of changed features: half the summed difference of their shares, 0 (the same) to 1."""
    mixes = [mix for mix in map(_mix, before) if mix]
    now = _mix(run)
    usual = {name: mean(mix.get(name, 0.0) for mix in mixes) for name in {name for mix in mixes for name in mix}}
    names = sorted({*now, *usual}, key=lambda name: (-now.get(name, 0.0), name))
    shifted = sum(abs(now.get(name, 0.0) - usual.get(name, 0.0)) for name in names) / 2 if now and usual else None
    features = [{"name": name, "now": now.get(name, 0.0), "before": usual.get(name, 0.0)} for name in names]
    return {
        "name": "mix",
        "title": "shift in which features change",
        "now": shifted,
        "before": 0.0 if usual else None,
        "limit": _FLOORS["mix"] if shifted is not None else None,
        "is_unusual": shifted is not None and shifted > _FLOORS["mix"],
        "features": features if usual else [],
    }


def _mix(run: dict[str, Any]) -> dict[str, float]:
    shares = {name: share or 0.0 for name, share in run["changed_features"].items()}
    total = sum(shares.values())
    return {name: share / total for name, share in shares.items()} if total else {}


def _verdict(num_before: int, unusual: list[dict[str, Any]]) -> str:
    if not num_before:
        return "No complete run came before this one, so there is nothing to compare it with yet."
    those = "the run before" if num_before == 1 else f"the last {num_before} runs"
    if not unusual:
        return f"Nothing unusual: all figures are within what {those} showed."
    return f"Unlike {those}: {'; '.join(map(_told, unusual))}."


def _told(check: dict[str, Any]) -> str:
    now, before = check["now"], check["before"]
    if check["name"] == "mix":
        return f"other features change ({percent(now)} of the changes moved to other features)"
    told = f"{check['title']} {figure(check['name'], now)}, was {figure(check['name'], before)}"
    if check["name"] == "distance" and before:
        return f"{told} ({percent(abs(now / before - 1))} {'longer' if now > before else 'shorter'})"
    return told
