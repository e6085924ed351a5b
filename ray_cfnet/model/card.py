"""MODEL_CARD.md: what a person should know before using a model."""

from typing import Any

from ray_cfnet.tables.rulewords import rule_words
from ray_cfnet.tables.schema import Continuous, Feature, TableSchema

_LIMITS = """\
## Intended use and limits

- It predicts and explains rows of the table described above. The predictor and the explainer were trained
  together, so its counterfactuals speak of this model and of no other.
- A counterfactual says what would change *this model's prediction*. It is not a promise, and it is not a
  statement about cause and effect in the world.
- The generator does not weigh how costly a change is for a person, nor does it offer several different ways.
- Check that counterfactuals do not repeat or support unfair treatment by race, gender or other groups.
  Declare what nobody can or should change as immutable, and let a trained person pass explanations on.
"""


def model_card(schema: TableSchema, settings: dict[str, Any], metrics: dict[str, Any]) -> str:
    """The card as Markdown. It holds no time and no path, so equal models have equal cards."""
    target = schema.target
    listed = f"{metrics.get('train_rows', 0):,} to train, {metrics.get('rows', 0):,} to test"
    lines = [
        f"# CounterNet for `{target.name}`",
        "",
        "## Data",
        "",
        f"- rows: {listed} (split: {settings['split']['method']})",
        f"- classes: {', '.join(f'`{label}`' for label in target.classes)}; desired: `{settings['desired']}`",
        *(["- target: another model's probability of class `1`; its class is 1 above 0.5"] * target.is_probability),
        f"- schema fingerprint: `{schema.fingerprint}`",
        "",
        "## Features and constraints",
        "",
        "| feature | kind | values | may change |",
        "|---|---|---|---|",
        *(f"| {_cell(f.name)} | {f.kind} | {_cell(_values(f))} | {_cell(_rules(f))} |" for f in schema.features),
        "",
        *([f"Between features: {'; '.join(map(str, schema.rules))}.", ""] if schema.rules else []),
        "## Metrics on the test split",
        "",
        "| | validity | proximity | sparsity | manifold | violations |",
        "|---|---|---|---|---|---|",
        *(_metric_row(name, metrics[name]) for name in ("cf", "fcf") if name in metrics),
        "",
        f"Accuracy: {_number(metrics.get('accuracy'))} on {metrics.get('rows', 0):,} rows.",
        "`cf` is the generator's own counterfactual, `fcf` the one projected onto the constraints.",
        "",
        _LIMITS,
    ]
    return "\n".join(lines)


def _cell(text: str) -> str:
    """A value from the data must not break the table."""
    return text.replace("|", "\\|").replace("\n", " ")


def _values(feature: Feature) -> str:
    if isinstance(feature, Continuous):
        step = f", step {feature.grid.step:g}" if feature.grid else ""
        return f"{feature.lower:g} to {feature.upper:g}{step}"
    separator = " < " if feature.ordered else ", "
    shown = separator.join(map(str, feature.categories[:12]))
    return shown + (f" and {len(feature.categories) - 12} more" if len(feature.categories) > 12 else "")


def _rules(feature: Feature) -> str:
    return "never" if feature.immutable else ", ".join(rule_words(feature)) or "freely"


def _metric_row(name: str, values: dict[str, Any]) -> str:
    cells = [_number(values.get(key)) for key in ("validity", "proximity", "sparsity", "manifold")]
    return f"| {name} | {' | '.join(cells)} | {values.get('violations', '-')} |"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
