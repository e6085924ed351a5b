"""The rules of a feature in words: for a person (`only up, 0.., step 100`), and as a code (`only_increase+bounds`)."""

from collections.abc import Iterator, Sequence

from ray_cfnet.config.ruletext import Relation
from ray_cfnet.tables.schema import Continuous, Feature

_SHOWN = 6
"""Of listed values; a feature may have a thousand."""


def rule_text(feature: Feature) -> str:
    """What a person should know of a feature's rules and values; empty where all is allowed."""
    if feature.immutable:
        return "immutable"
    said = list(rule_words(feature))
    if isinstance(feature, Continuous):
        if feature.grid and feature.allowed is None:
            said.append(f"step {_plain(feature.grid.step)}")
    elif feature.ordered:
        said.append(" < ".join(map(str, feature.categories)))
    return ", ".join(said)


def rule_words(feature: Feature) -> Iterator[str]:
    """Each declared rule."""
    return (words for _, words in _rules(feature))


def rule_code(feature: Feature, relations: Sequence[Relation] = ()) -> str:
    """The kinds of rules that can leave a row without a way, as one word; `step` where there is the grid alone."""
    kinds = [kind for kind, _ in _rules(feature)]
    if not feature.immutable and any(feature.name in (rule.first, rule.second) for rule in relations):
        kinds.append("relation")
    return "+".join(dict.fromkeys(kinds)) or "step"


def _rules(feature: Feature) -> Iterator[tuple[str, str]]:
    """(kind, words) of each declared rule."""
    if feature.immutable:
        yield "immutable", "immutable"
        return
    if feature.direction != "any":
        yield f"only_{feature.direction}", "only up" if feature.direction == "increase" else "only down"
    if isinstance(feature, Continuous):
        if feature.bounds != (None, None):
            yield "bounds", "..".join("" if end is None else _plain(feature.as_written(end)) for end in feature.bounds)
        if feature.max_change is not None:
            yield "max_change", f"by {_plain(feature.max_change)} at most"
        if feature.max_change_percent is not None:
            yield "max_change", f"by {_plain(feature.max_change_percent)} % at most"
        if feature.tolerance:
            yield "tolerance", f"by {_plain(feature.tolerance)} at least"
    if feature.allowed is not None:
        values = feature.allowed
        if isinstance(feature, Continuous):
            values = tuple(map(feature.as_written, feature.allowed))
        yield "allowed", f"to {_listed(list(map(_plain, values)), ' or ')} only"
    if not isinstance(feature, Continuous) and feature.forbidden:
        yield "transitions", f"not {_listed([f'{start} -> {end}' for start, end in feature.forbidden], ', ')}"


def _listed(texts: list[str], separator: str) -> str:
    left = len(texts) - _SHOWN
    return separator.join(texts[:_SHOWN]) + (f" and {left} more" if left > 0 else "")


def _plain(value: object) -> str:
    return f"{value:,.12g}" if isinstance(value, float) else str(value)
