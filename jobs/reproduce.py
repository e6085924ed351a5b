"""The paper's tables again: datasets x variants x seeds, each a real training run, as one Markdown table.

    python jobs/reproduce.py --data PATH --datasets adult heloc --variants plain --seeds 0 1 2 --output table.md

cf is what the network gives, fcf what explain writes: feasible and refined. Figures are of the test split.
Rows already in the output's JSON lines file are not run again, so a stopped run goes on.
"""

import argparse
import json
from pathlib import Path
from statistics import mean
from typing import Any

from ray_cfnet.cluster.session import ray_session
from ray_cfnet.commands import run_evaluate, run_train
from ray_cfnet.config import Config
from ray_cfnet.config.file import load_config

CONF = Path(__file__).parent.parent / "conf"
DATASETS = ("adult", "credit", "heloc", "oulad", "cancer", "covertype")
PAPER = ["model.generator_kind=plain", "training.lambda_valid=0.2"]
VARIANTS: dict[str, list[str]] = {
    "default": [],
    "plain": PAPER,
    "constant rate": [*PAPER, "training.schedule=constant"],
    "BCE": [*PAPER, "training.loss=bce"],
    "SingleBP": [*PAPER, "training.update=single"],
    "Separate": [*PAPER, "model.separate=true"],
    "NoPass-p": [*PAPER, "model.pass_prediction=false"],
    "Posthoc": [*PAPER, "training.update=posthoc"],
    "NoFreeze": [*PAPER, "training.freeze=false"],
    "NoSmooth": [*PAPER, "training.label_smoothing=false"],
    "l1": [*PAPER, "training.proximity_loss=l1"],
    "Conv": [*PAPER, "model.block=conv"],
}
"""The configuration as it ships, and the paper's generator with one thing of it changed."""
COLUMNS = (
    *("accuracy", "cf validity", "cf proximity", "cf sparsity"),
    *("fcf validity", "fcf proximity", "fcf sparsity", "fcf violations"),
)


def configured(dataset: str, variant: str, seed: int, data: Path | None, work: Path, epochs: int | None) -> Config:
    overrides = [*VARIANTS[variant], f"training.seed={seed}", f"output.path={work}/out"]
    if dataset == "cancer":
        overrides.append(f"table.path={work}/cancer")
    else:
        overrides.append(f"table.path={data}/{dataset}.parquet")
    if epochs is not None:
        overrides.append(f"training.epochs={epochs}")
    return load_config(CONF / f"{dataset}.yaml", overrides)


def is_done(runs: list[dict[str, Any]], dataset: str, variant: str, config: Config) -> bool:
    asked = (dataset, variant, config.training.seed, config.training.epochs)
    return asked in {(run["dataset"], run["variant"], run["seed"], run["epochs"]) for run in runs}


def one_run(dataset: str, variant: str, config: Config) -> dict[str, Any]:
    trained = run_train(config, lambda _: None)
    metrics = run_evaluate(config, str(trained["bundle"]), "test")
    figures = {"accuracy": metrics["accuracy"]}
    figures |= {f"cf {name}": metrics["cf"][name] for name in ("validity", "proximity", "sparsity")}
    figures |= {f"fcf {name}": metrics["fcf"][name] for name in ("validity", "proximity", "sparsity", "violations")}
    training = config.training
    return {"dataset": dataset, "variant": variant, "seed": training.seed, "epochs": training.epochs, **figures}


def markdown(runs: list[dict[str, Any]]) -> str:
    """Means over seeds; of broken rules the sum."""
    lines = [
        f"| table | variant | seeds | epochs | {' | '.join(COLUMNS)} |",
        "|---|---|---|---|" + "---|" * len(COLUMNS),
    ]
    for key in dict.fromkeys((run["dataset"], run["variant"], run["epochs"]) for run in runs):
        same = [run for run in runs if (run["dataset"], run["variant"], run["epochs"]) == key]
        cells = []
        for column in COLUMNS:
            values = [run[column] for run in same if run.get(column) is not None]
            total = f"{sum(values)}" if column == "fcf violations" else f"{mean(values or [0]):.3f}"
            cells.append(total if values else "-")
        seeds = ", ".join(str(run["seed"]) for run in same)
        lines.append(f"| {key[0]} | {key[1]} | {seeds} | {key[2]} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="directory with the paper's tables (cancer needs none)")
    parser.add_argument("--datasets", nargs="+", choices=DATASETS, default=["cancer"])
    parser.add_argument("--variants", nargs="+", choices=list(VARIANTS), default=["default"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--epochs", type=int, help="instead of the configuration's")
    parser.add_argument("--work", type=Path, default=Path("out/reproduce"), help="bundles go there")
    parser.add_argument("--output", type=Path, default=Path("out/reproduce/table.md"))
    arguments = parser.parse_args()
    log = arguments.output.with_suffix(".jsonl")
    log.parent.mkdir(parents=True, exist_ok=True)
    runs = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    with ray_session(min_cpus=3):
        for dataset in arguments.datasets:
            for variant in arguments.variants:
                for seed in arguments.seeds:
                    config = configured(dataset, variant, seed, arguments.data, arguments.work, arguments.epochs)
                    if is_done(runs, dataset, variant, config):
                        continue
                    runs.append(one_run(dataset, variant, config))
                    with log.open("a") as file:
                        file.write(json.dumps(runs[-1]) + "\n")
                    arguments.output.write_text(markdown(runs))
                    print(json.dumps(runs[-1]), flush=True)


if __name__ == "__main__":
    main()
