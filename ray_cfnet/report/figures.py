"""What a report says about a run's rows, asked of DuckDB: every answer is small, however large the table.

Medians are approximate (t-digest): exact ones would hold every value in memory.
"""

import math
from typing import Any

from ray_cfnet.report.rows import RunRows, identifier, literal

Figures = dict[str, Any]

_BINS = 20
_MOVES = 3
_MAX_CLASSES = 12
_MAX_GROUPS = 12
_AUTO_SEGMENTS = 4
_MIN_GROUP_ROWS = 30
"""Smaller groups are shown, but no sentence is built on them."""
_CLEAR = 3.0
"""Standard errors between two means before their difference is called clear."""


def distance_figures(rows: RunRows) -> Figures:
    """How many changes a way needs and how far it is."""
    summary = rows.one(
        """
        SELECT count(*) AS ways, avg(fcf_num_changed) AS mean_changes, avg(fcf_distance) AS mean_distance,
               approx_quantile(fcf_distance::DOUBLE, 0.5) AS median_distance,
               approx_quantile(fcf_distance::DOUBLE, 0.9) AS p90_distance,
               approx_quantile(fcf_distance::DOUBLE, 0.99) AS p99_distance
        FROM explained WHERE row_status = 'ok'
        """
    )
    changes = rows.query(
        "SELECT fcf_num_changed AS changes, count(*) AS num_rows FROM explained WHERE row_status = 'ok' "
        "GROUP BY ALL ORDER BY ALL"
    )
    width = _round_width((summary["p99_distance"] or 0) / (_BINS - 1))
    bins = rows.query(
        "SELECT least(floor(fcf_distance / $1), $2)::INT AS bin, count(*) AS num_rows "
        "FROM explained WHERE row_status = 'ok' GROUP BY ALL ORDER BY ALL",
        [width, _BINS],
    )
    distances = [
        {"start": bin_["bin"] * width, "end": (bin_["bin"] + 1) * width, "num_rows": bin_["num_rows"]}
        | ({"end": None} if bin_["bin"] == _BINS else {})
        for bin_ in bins
    ]
    return {**summary, "changes": changes, "distances": distances, "width": width}


def _round_width(width: float) -> float:
    """The next larger of 1, 2, 2.5, 5 and 10 times a power of ten: edges that can be read."""
    if width <= 0:
        return 0.01
    power = 10.0 ** math.floor(math.log10(width))
    return next(step * power for step in (1, 2, 2.5, 5, 10) if step * power >= width)


def feature_figures(rows: RunRows) -> list[Figures]:
    """Features that ways change, the most changed first, with their typical moves."""
    numbers = [name for name, kind in rows.features.items() if kind == "continuous"]
    labels = [name for name, kind in rows.features.items() if kind == "categorical"]
    found = [*_number_moves(rows, numbers), *(_label_moves(rows, name) for name in labels)]
    return sorted((one for one in found if one["num_rows"]), key=lambda one: (-one["num_rows"], one["name"]))


def _number_moves(rows: RunRows, names: list[str]) -> list[Figures]:
    """All number features in one scan."""
    if not names:
        return []
    asked = []
    for position, name in enumerate(names):
        old, new = f"{identifier(name)}::DOUBLE", f"{identifier('fcf_' + name)}::DOUBLE"
        where = f"FILTER (WHERE {old} <> {new})"
        asked += [
            f"count(*) {where} AS num_rows_{position}",
            f"count(*) FILTER (WHERE {new} > {old}) AS raised_{position}",
            f"approx_quantile({old}, 0.5) {where} AS old_{position}",
            f"approx_quantile({new}, 0.5) {where} AS new_{position}",
        ]
    answer = rows.one(f"SELECT count(*) AS ways, {', '.join(asked)} FROM explained WHERE row_status = 'ok'")  # noqa: S608
    whole = {name: rows.columns[name].upper().endswith("INT") or "INTEGER" in rows.columns[name] for name in names}
    return [
        {
            "name": name,
            "kind": "continuous",
            "num_rows": answer[f"num_rows_{position}"],
            "share": answer[f"num_rows_{position}"] / answer["ways"] if answer["ways"] else 0.0,
            "raised": answer[f"raised_{position}"] / max(answer[f"num_rows_{position}"], 1),
            "old": _rounded(answer[f"old_{position}"], whole[name]),
            "new": _rounded(answer[f"new_{position}"], whole[name]),
        }
        for position, name in enumerate(names)
    ]


def _rounded(value: float | None, whole: bool) -> float | int | None:
    if value is None:
        return None
    return round(value) if whole else float(f"{value:.4g}")


def _label_moves(rows: RunRows, name: str) -> Figures:
    """Who changes a category, and the most common moves from one to another."""
    old, new = identifier(name), identifier(f"fcf_{name}")
    moves = rows.query(
        f"""
        WITH told AS (SELECT {old} AS old, {new} AS new, count(*) AS num_rows
                      FROM explained WHERE row_status = 'ok' GROUP BY ALL)
        SELECT old, new, num_rows, sum(num_rows) OVER () AS ways,
               sum(num_rows) FILTER (WHERE old IS DISTINCT FROM new) OVER () AS changed
        FROM told QUALIFY old IS DISTINCT FROM new ORDER BY num_rows DESC, old, new LIMIT {_MOVES}
        """  # noqa: S608
    )
    changed = int(moves[0]["changed"]) if moves else 0
    return {
        "name": name,
        "kind": "categorical",
        "num_rows": changed,
        "share": changed / int(moves[0]["ways"]) if moves else 0.0,
        "moves": [
            {"old": str(move["old"]), "new": str(move["new"]), "share": move["num_rows"] / changed} for move in moves
        ],
    }


def segment_figures(rows: RunRows, wanted: list[str]) -> list[Figures]:
    """Who gets longer ways, by each wanted column; by those features that differ most when none is named."""
    labels = [name for name, kind in rows.features.items() if kind == "categorical"]
    found = [_segment(rows, name) for name in wanted or labels]
    if wanted:
        return found
    told = [segment for segment in found if len(segment["groups"]) > 1]
    return sorted(told, key=lambda segment: (not segment["is_clear"], -segment["gap"]))[:_AUTO_SEGMENTS]


def _segment(rows: RunRows, name: str) -> Figures:
    column = identifier(name)
    groups = rows.query(
        f"""
        SELECT {column}::VARCHAR AS name, count(*) AS num_rows,
               count(*) FILTER (WHERE row_status IN ('ok', 'no_feasible_cf')) AS wanting,
               count(*) FILTER (WHERE row_status = 'ok') AS ways,
               avg(fcf_num_changed) AS mean_changes, avg(fcf_distance) AS mean_distance,
               coalesce(stddev_samp(fcf_distance), 0) AS spread, count(*) OVER () AS num_groups
        FROM explained GROUP BY 1 ORDER BY num_rows DESC, 1 LIMIT {_MAX_GROUPS}
        """  # noqa: S608
    )
    for group in groups:
        group["name"] = "(null)" if group["name"] is None else group["name"]
        group["wanting_share"] = group["wanting"] / group["num_rows"]
        group["validity"] = group["ways"] / group["wanting"] if group["wanting"] else None
    left_out = groups[0]["num_groups"] - len(groups) if groups else 0
    return {"name": name, "groups": groups, "left_out": left_out, **_compared(groups)}


def _compared(groups: list[Figures]) -> Figures:
    """The longest and the shortest ways among groups large enough to speak of."""
    large = sorted((one for one in groups if one["ways"] >= _MIN_GROUP_ROWS), key=lambda one: one["mean_distance"])
    if len(large) < 2 or not large[0]["mean_distance"]:
        return {"longest": None, "shortest": None, "gap": 0.0, "is_clear": False}
    shortest, longest = large[0], large[-1]
    error = math.hypot(*(one["spread"] / math.sqrt(one["ways"]) for one in (shortest, longest)))
    difference = longest["mean_distance"] - shortest["mean_distance"]
    return {
        "longest": longest,
        "shortest": shortest,
        "gap": difference / shortest["mean_distance"],
        "is_clear": difference > _CLEAR * error,
    }


def quality_figures(rows: RunRows) -> Figures | None:
    """Predictions against labels; None where the table has no target column or no label."""
    if rows.target is None:
        return None
    label, is_labelled = _labels(rows, rows.target)
    cells = rows.query(
        f"""
        SELECT {label} AS label, pred_label::VARCHAR AS predicted, count(*) AS num_rows
        FROM explained WHERE {is_labelled} GROUP BY ALL ORDER BY ALL LIMIT {_MAX_CLASSES**2 + 1}
        """  # noqa: S608
    )
    labelled = sum(cell["num_rows"] for cell in cells)
    if not labelled or len(cells) > _MAX_CLASSES**2:
        return None
    classes = sorted({cell[key] for cell in cells for key in ("label", "predicted")})
    counts = {(cell["label"], cell["predicted"]): cell["num_rows"] for cell in cells}
    calibration = rows.query(
        f"""
        SELECT least(floor(pred_proba * 10), 9)::INT AS bin, count(*) AS num_rows, avg(pred_proba) AS said,
               avg(({label} = pred_label::VARCHAR)::INT) AS was
        FROM explained WHERE {is_labelled} GROUP BY 1 ORDER BY 1
        """  # noqa: S608
    )
    return {
        "target": rows.target,
        "labelled": labelled,
        "accuracy": sum(counts.get((one, one), 0) for one in classes) / labelled,
        "classes": classes,
        "per_class": [_class_quality(one, classes, counts) for one in classes],
        "confusion": [[counts.get((label, predicted), 0) for predicted in classes] for label in classes],
        "calibration": calibration,
    }


def _labels(rows: RunRows, target: str) -> tuple[str, str]:
    """A row's label as text, and whether it has one, in SQL. As in training: what is no class is no label."""
    column, kind = identifier(target), rows.columns[target]
    if kind in ("FLOAT", "DOUBLE"):  # a probability
        # NaN apart: the statistics of Parquet leave it out, and DuckDB takes them as proof of ranges and of isnan.
        return f"({column} > 0.5)::INT::VARCHAR", f"(isfinite({column}) AND {column} BETWEEN 0 AND 1)"
    label = f"{column}::VARCHAR"
    if rows.classes is None or kind == "BOOLEAN":
        return label, f"{column} IS NOT NULL"
    return label, f"{label} IN ({', '.join(map(literal, rows.classes))})"


def _class_quality(name: str, classes: list[str], counts: dict[tuple[str, str], int]) -> Figures:
    hits = counts.get((name, name), 0)
    predicted = sum(counts.get((other, name), 0) for other in classes)
    actual = sum(counts.get((name, other), 0) for other in classes)
    return {
        "name": name,
        "num_rows": actual,
        "precision": hits / predicted if predicted else None,
        "recall": hits / actual if actual else None,
    }


def reject_figures(rows: RunRows) -> list[Figures]:
    """Rejected rows by reason and column at fault."""
    if not rows.has_rejects:
        return []
    return rows.query(
        "SELECT reject_reason AS reason, reject_column AS name, count(*) AS num_rows FROM rejected "
        "GROUP BY ALL ORDER BY num_rows DESC, reason, name LIMIT 30"
    )


def sample_figures(rows: RunRows, count: int) -> list[Figures]:
    """Rows in need of a way, picked by a hash of all they hold: the same ones each time, from everywhere."""
    columns = ["row_status", "pred_label", "pred_proba", "fcf_proba", "fcf_distance"]
    columns += [name for feature in rows.features for name in (feature, f"fcf_{feature}")]
    columns += [name for name in ("explanation",) if name in rows.columns]
    # Keys as text: of some types, such as times with a zone, DuckDB makes no Python value without further packages.
    keys = [f"{key}::VARCHAR AS {key}" for key in map(identifier, rows.keys)]
    listed = ", ".join([*map(identifier, columns), *keys])
    order = ", ".join(map(identifier, [*rows.keys, *rows.features]))
    picked = rows.query(
        f"""
        SELECT {listed} FROM explained WHERE row_status IN ('ok', 'no_feasible_cf')
        ORDER BY hash({order}), {order} LIMIT $1
        """,  # noqa: S608
        [count],
    )
    return [_sample(row, rows) for row in picked]


def _sample(row: Figures, rows: RunRows) -> Figures:
    has_way = row["row_status"] == "ok"
    changes = [
        {"name": name, "old": row[name], "new": row[f"fcf_{name}"]}
        for name in rows.features
        if has_way and row[name] != row[f"fcf_{name}"]
    ]
    return {
        "key": ", ".join(f"{key} {row[key]}" for key in rows.keys),
        "has_way": has_way,
        "label": row["pred_label"],
        "probability": row["pred_proba"],
        "new_probability": row["fcf_proba"],
        "distance": row["fcf_distance"],
        "changes": changes,
        "explanation": row.get("explanation"),
    }
