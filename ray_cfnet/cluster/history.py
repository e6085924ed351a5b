"""What every epoch measured, beside the bundle: JSON lines for programs, TensorBoard for people.

Not part of the bundle's id, because seconds differ from run to run.
"""

import json
import tempfile
from pathlib import Path
from typing import Any

from tensorboardX import SummaryWriter

from ray_cfnet.tables.storage import Location


def write_history(bundle: Location, history: list[dict[str, Any]]) -> None:
    """`history.jsonl` and `tensorboard/events...` in the bundle's directory."""
    lines = "".join(json.dumps(metrics) + "\n" for metrics in history)
    (bundle / "history.jsonl").write_bytes(lines.encode())
    (bundle / "tensorboard").delete()  # the same model trained again: two files would be drawn as one curve
    with tempfile.TemporaryDirectory() as directory:
        with SummaryWriter(directory) as writer:
            for metrics in history:
                for name, value in metrics.items():
                    if name != "epoch" and value is not None:
                        writer.add_scalar(name, value, metrics["epoch"])
        for file in Path(directory).iterdir():
            (bundle / "tensorboard" / file.name).write_bytes(file.read_bytes())
