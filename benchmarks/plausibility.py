"""What plausibility costs: python benchmarks/plausibility.py --data PATH adult=BUNDLE heloc=BUNDLE credit=BUNDLE

For each bundle and each `explain.plausibility`, on test rows: distance to the nearest training row beside that of the
untouched rows, share of features changed, proximity. Writes a table to standard output and docs/plausibility.svg.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch
import vl_convert

from ray_cfnet.config import Explain
from ray_cfnet.explain.explainer import Explainer
from ray_cfnet.model.bundle import Bundle
from ray_cfnet.model.metrics import Manifold, distances, num_changed
from ray_cfnet.tables.codec import Encoded, encode
from ray_cfnet.tables.storage import Location

LEVELS = (0.0, 0.01, 0.02, 0.05, 0.1, 0.3, 1.0)
PICTURE = Path(__file__).parent.parent / "docs" / "plausibility.svg"


def rows_of(file: Path, bundle: Bundle, start: float, stop: float) -> Encoded:
    table = pq.read_table(file)
    first, last = int(len(table) * start), int(len(table) * stop)
    encoded, rejects = encode(table.slice(first, last - first), bundle.schema)
    return encoded.take(rejects.good)


def measured(name: str, bundle: Bundle, file: Path, num_rows: int) -> list[dict[str, Any]]:
    """A sequential split, as the configurations of these tables have it."""
    split = bundle.settings.split
    training = rows_of(file, bundle, 0.0, split.train)
    bundle.reference = Explainer(bundle, bundle.desired).reference(training)
    rows = rows_of(file, bundle, split.train + split.validation, 1.0).take(slice(0, num_rows))
    manifold = Manifold(training, bundle.schema)
    lines = []
    for level in LEVELS:
        found = Explainer(bundle, bundle.desired, Explain(plausibility=level)).explain(rows)
        own, answers = rows.take(found.has_fcf), found.fcf.take(found.has_fcf)
        lines.append(
            {
                "table": name,
                "plausibility": level,
                "manifold": float(np.mean(manifold.nearest(answers)[0])),
                "untouched": float(np.mean(manifold.nearest(own)[0])),
                "sparsity": float(num_changed(own, answers).mean() / len(bundle.schema.features)),
                "proximity": float(distances(own, answers, bundle.schema).mean()),
            }
        )
    return lines


def picture(lines: list[dict[str, Any]]) -> str:
    x = {"field": "sparsity", "type": "quantitative", "title": "share of features changed", "scale": {"zero": False}}
    y = {
        "field": "manifold",
        "type": "quantitative",
        "title": "distance to the nearest training row",
        "scale": {"zero": False},
    }
    labels = {"field": "plausibility", "type": "quantitative"}
    layers: list[dict[str, Any]] = [
        {"mark": {"type": "line", "point": True}, "encoding": {"x": x, "y": y, "order": labels}},
        {"mark": {"type": "text", "dx": 6, "dy": -7, "align": "left"}, "encoding": {"x": x, "y": y, "text": labels}},
    ]
    chart = {
        "$schema": "https://vega.github.io/schema/vega-lite/v5.json",
        "title": "explain.plausibility: fewer changes, or more usual ones",
        "data": {"values": lines},
        "facet": {"column": {"field": "table", "title": None}},
        "resolve": {"scale": {"x": "independent", "y": "independent"}},
        "spec": {"width": 220, "height": 200, "layer": layers},
    }
    return vl_convert.vegalite_to_svg(json.dumps(chart), vl_version="5.21")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundles", nargs="+", metavar="TABLE=BUNDLE")
    parser.add_argument("--data", type=Path, required=True, help="directory with TABLE.parquet")
    parser.add_argument("--rows", type=int, default=1_000, help="test rows of each table")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    lines = []
    for pair in arguments.bundles:
        name, _, place = pair.partition("=")
        bundle = Bundle.load(Location.of(place))
        lines += measured(name, bundle, arguments.data / f"{name}.parquet", arguments.rows)
    print("| table | plausibility | manifold | untouched | sparsity | proximity |\n|---|---|---|---|---|---|")
    for line in lines:
        print("| " + " | ".join(f"{v:.3f}" if isinstance(v, float) else v for v in line.values()) + " |")
    PICTURE.write_text(picture(lines))


if __name__ == "__main__":
    main()
