"""Results for people, on standard output."""

from typing import Any

from rich.console import Console
from rich.table import Table


def metrics_table(metrics: dict[str, Any]) -> Table:
    """Metrics of cf and fcf side by side."""
    table = Table(
        title=f"accuracy {_number(metrics['accuracy'])} on {metrics['rows']:,} test rows", title_justify="left"
    )
    table.add_column("")
    for name in ("validity", "proximity", "sparsity", "manifold", "violations"):
        table.add_column(name, justify="right")
    labels = {"cf": "generated cf", "fcf": "feasible fcf"}
    for key, label in labels.items():
        values = metrics[key]
        cells = [_number(values[name]) for name in ("validity", "proximity", "sparsity", "manifold")]
        table.add_row(label, *cells, str(values.get("violations", "-")))
    table.caption = f"manifold distance of the untouched rows: {_number(metrics['manifold_of_rows'])}"
    table.caption_justify = "left"
    return table


def show_evaluated(console: Console, metrics: dict[str, Any]) -> None:
    """Our answers beside the trivial ones, the predictor's stability, and the paper's figures if asked for."""
    show_answers(console, metrics)
    _print_tables(console, [_stability_table(metrics["stability"])])
    if "paper" in metrics:
        _print_tables(console, [_paper_table(metrics)])


def show_answers(console: Console, metrics: dict[str, Any]) -> None:
    """How good predictions and counterfactuals are, in a dozen lines."""
    console.print(
        f"accuracy {_number(metrics['accuracy'])} on {metrics['rows']:,} rows, "
        f"{metrics['ms_per_row']:.4f} ms to explain one, {metrics['fcf']['violations']} rules broken",
        highlight=False,
    )
    _print_tables(console, [_answers_table(metrics)])


def _print_tables(console: Console, tables: list[Table]) -> None:
    for table in tables:
        console.print()
        console.print(table)


def _plain_table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    for position, name in enumerate(columns):
        table.add_column(name, justify="right" if position else "left", no_wrap=True)
    return table


def _answers_table(metrics: dict[str, Any]) -> Table:
    names = ("validity", "proximity", "sparsity", "manifold", "distinct")
    table = _plain_table("counterfactuals", "", *names)
    small = f"without changes up to {metrics['second_order_threshold']:g}"
    trivial = metrics["trivial"]
    for label, values in (
        ("generated cf", metrics["cf"]),
        (f"  {small}", metrics["cf"]["second_order"]),
        ("feasible fcf", metrics["fcf"]),
        (f"  {small}", metrics["fcf"]["second_order"]),
        ("trivial: one row for all", trivial["constant"]),
        ("trivial: nearest row", trivial["nearest"]),
        ("the rows themselves", {"manifold": metrics["manifold_of_rows"]}),
    ):
        table.add_row(label, *(_number(values[name]) if name in values else "" for name in names))
    return table


def _stability_table(stability: dict[str, Any]) -> Table:
    table = _plain_table(
        f"predictions that stay under attack ({stability['rows']:,} rows)",
        "epsilon",
        *(f"{epsilon:g}" for epsilon in stability["epsilons"]),
    )
    for name in ("fgsm", "pgd"):
        table.add_row(name.upper(), *map(_number, stability[name]))
    return table


def _paper_table(metrics: dict[str, Any]) -> Table:
    paper, cf = metrics["paper"], metrics["cf"]
    theirs, tables = paper["cf"], paper["tables"]
    table = _plain_table(f"ours and the paper's ({paper['dataset']})", "", "ours", "paper")
    table.add_column("where")
    lines = [
        ("accuracy", metrics["accuracy"], paper.get("accuracy"), tables.get("accuracy")),
        ("accuracy, base model", None, paper.get("base_accuracy"), tables.get("accuracy")),
        *(
            (f"cf {name}", cf[name], theirs.get(name), tables["cf"])
            for name in ("validity", "proximity", "l1", "sparsity", "manifold")
        ),
        *(
            (f"second-order {name}", cf["second_order"][name], value, tables["second_order"])
            for name, value in theirs.get("second_order", {}).items()
        ),
        ("ms per row", metrics["ms_per_row"], paper.get("ms_per_row"), tables.get("ms_per_row")),
    ]
    for label, ours, value, where in lines:
        if value is not None:
            table.add_row(label, _number(ours), _number(value), where)
    return table


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def show_trained(console: Console, result: dict[str, Any]) -> None:
    console.print(metrics_table(result["metrics"]))
    console.print(f"best of {result['epochs']} epochs: {result['best_epoch']}", highlight=False)
    console.print(f"bundle: {result['bundle']}", highlight=False, soft_wrap=True)


def show_explained(console: Console, result: dict[str, Any]) -> None:
    if result["already_done"]:
        console.print(f"nothing to do: run {result['run_id']} is complete, and its rows are in place", highlight=False)
    console.print(
        f"{result['rows_in']:,} rows in = {result['rows_out']:,} explained + {result['rows_rejected']:,} rejected, "
        f"{result['seconds']:.1f} s, {result['rows_per_s']:,.0f} rows/s",
        highlight=False,
    )
    shares = ", ".join(f"{name} {count:,}" for name, count in result["row_status"].items() if count)
    console.print(f"row_status: {shares}", highlight=False)
    for reason, count in result["rejects"].items():
        console.print(f"rejected, {reason}: {count:,} rows, in {result['output']}/_rejects", highlight=False)
    console.print(f"output: {result['output']}  (run {result['run_id']}, model {result['model_id']})", soft_wrap=True)


def show_runs(console: Console, result: dict[str, Any]) -> None:
    table = _plain_table(f"runs of {result['output']}", "run", "state", "finished", "rows", "rejected", "fcf", "rows/s")
    for run in result["runs"]:
        if "finished_at" not in run:
            table.add_row(run["run_id"], run["state"])
            continue
        validity = _number(run["fcf_validity"])
        figures = (f"{run['rows_in']:,}", f"{run['rows_rejected']:,}", validity, f"{run['rows_per_s']:,.0f}")
        table.add_row(run["run_id"], run["state"], run["finished_at"][:19], *figures)
    table.caption = "fcf: share of rows in need of a feasible counterfactual that have one"
    table.caption_justify = "left"
    console.print(table)


def show_run(console: Console, run: dict[str, Any]) -> None:
    if "finished_at" not in run:
        console.print(f"run {run['run_id']}: {run['state']}; explain with the same settings goes on with it")
        return
    lines = [
        f"run {run['run_id']}: {run['state']}, finished {run['finished_at']}, model {run['model_id']}",
        f"input:  {run['input']} ({len(run['inputs'])} files)",
        f"output: {run['output']} ({run['format']})",
        f"rows:   {run['rows_in']:,} in = {run['rows_out']:,} explained + {run['rows_rejected']:,} rejected",
        *(f"        rejected, {reason}: {count:,}" for reason, count in run["rejects"].items()),
        f"speed:  {run['seconds']:.1f} s, {run['rows_per_s']:,.0f} rows/s, {run['rows_per_s_per_core']:,.0f} per core",
        f"actors: {run['actors']}, peak memory {run['peak_rss_mb']:,} MB, {run['retries']} retries",
        *(f"failed: {failure['error'].splitlines()[0]}" for failure in run["failures"]),
    ]
    for line in lines:
        console.print(line, highlight=False, soft_wrap=True, markup=False)
    console.print()
    table = _plain_table("partitions", "", "rows", "rejected", "ok", "no way", "distance", "most changed")
    for name, part in run["partitions"].items():
        shares = part["row_status_share"]
        most = ", ".join(f"{feature} {share:.0%}" for feature, share in list(part["changed_features"].items())[:3])
        table.add_row(
            name or "(whole table)",
            f"{part['rows_in']:,}",
            f"{part['rows_rejected']:,}",
            *(f"{shares.get(status, 0):.1%}" for status in ("ok", "no_feasible_cf")),
            _number(part["mean_fcf_distance"]),
            most if part["state"] == "committed" else part["state"],
        )
    console.print(table)


def show_night(console: Console, night: dict[str, Any]) -> None:
    model, retrain = night["model"], night["retrain"]
    lines = [
        f"{night['state']}: {len(night['done'])} partitions explained, {len(night['failed'])} failed, "
        f"{len(night['left'])} left",
        f"{night['rows_in']:,} rows in = {night['rows_out']:,} explained + {night['rows_rejected']:,} rejected, "
        f"feasible counterfactual for {_number(night['fcf_validity'])} of those in need",
        f"model {model['id']}, in use for {model['age_days']:.1f} days, drift {_number(model['drift'])}, "
        f"{model['labelled_rows']:,} labelled rows",
        *(f"a training is due, {reason}" for reason in retrain["reasons"]),
    ]
    if retrain["done"]:
        lines.append(f"trained {retrain['done']['to_id']}: {retrain['done']['decision']}")
    for line in lines:
        console.print(line, highlight=False, soft_wrap=True, markup=False)


def show_promoted(console: Console, result: dict[str, Any]) -> None:
    said = {
        "promoted": f"promoted {result['to_id']}",
        "forced": f"promoted {result['to_id']} by force: {result['reason']}",
        "refused": f"refused {result['to_id']}; in use stays {result['from_id'] or 'none'}",
        "rolled_back": f"back to {result['to_id']}, from {result['from_id']}",
    }
    lines = [said[result["decision"]], *(f"  {failure['message']}" for failure in result["failures"])]
    lines.append(f"store: {result['store']} (record {result['sequence']})")
    for line in lines:
        console.print(line, highlight=False, soft_wrap=True, markup=False)


def show_models(console: Console, result: dict[str, Any]) -> None:
    current = result["current"]
    names = ("accuracy", "validity", "proximity", "fcf_validity", "fcf_proximity", "violations")
    table = Table()
    table.add_column("bundle", no_wrap=True)
    table.add_column("")
    for name in names:
        table.add_column(name.replace("_", " "), justify="right")
    problems = [f"CURRENT: {result['problem']}"] if result["problem"] else []
    for model in result["models"]:
        figures = model["metrics"] or {}
        cells = [_number(figures.get(name)) for name in names[:-1]]
        violations = figures.get("violations")
        cells.append("-" if violations is None else f"{violations:g}")
        table.add_row(model["id"], "CURRENT" if model["current"] else "", *cells)
        problems += [model["problem"]] if model["problem"] else []
    console.print(table)
    since = f"{current['id']}, since {current['promoted_at']}" if current else "none; ray-cfnet promote takes one"
    for line in (f"in use: {since}", *(f"damaged: {problem}" for problem in problems)):
        console.print(line, highlight=False, soft_wrap=True, markup=False)


def show_demo(console: Console, result: dict[str, Any]) -> None:
    console.rule("what was made")
    console.print(f"table:  {result['table']} ({result['partitions']} partitions)", highlight=False, soft_wrap=True)
    console.print(f"bundle: {result['train']['bundle']}", highlight=False, soft_wrap=True)
    show_explained(console, result["explain"])
    console.rule("how good it is")
    show_answers(console, result["evaluate"])
    console.rule("one row, in words")
    console.print(result["example"], highlight=False)
