"""The section `words`: the texts that make a row's explanation a sentence."""

from string import Formatter
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, ValidationInfo, field_validator

from ray_cfnet.config.section import Label, Section, fault

_OF_A_CHANGE = ("name", "old", "new")
_OF_A_NUMBER = (*_OF_A_CHANGE, "change")
_PLACEHOLDERS: dict[str, tuple[str, ...]] = {
    "increase": _OF_A_NUMBER,
    "decrease": _OF_A_NUMBER,
    "change": _OF_A_CHANGE,
    "to_reach": ("desired", "changes"),
    "already": ("desired",),
    "none": ("desired",),
    "none_because": ("desired", "features"),
    "more": ("count",),
}
_NEEDED = {"to_reach": "changes", "none_because": "features"}

FEATURE_WORDS = {
    **dict.fromkeys(("increase", "decrease", "format", "unit", "unit_one", "decimals"), "continuous"),
    **dict.fromkeys(("change", "labels"), "categorical"),
}
"""Which kind of feature a key is for; the others are for both."""


def label_text(label: Label) -> str:
    """A class or a category as it is written in a sentence, and found in the configuration."""
    return str(label).lower() if isinstance(label, bool) else str(label)


def _keys_as_texts(texts: Any) -> Any:
    """YAML reads 1 and true as no strings, and JSON knows no other keys."""
    return {label_text(key): text for key, text in texts.items()} if isinstance(texts, dict) else texts


Labels = Annotated[dict[str, str], BeforeValidator(_keys_as_texts)]


def _check_template(text: str, key: str) -> None:
    listed = ", ".join(f"{{{name}}}" for name in _PLACEHOLDERS[key])
    try:
        parts = list(Formatter().parse(text))
    except ValueError as error:
        raise fault(f"{str(error).lower()}; placeholders are {listed}, and {{{{ is a brace itself") from None
    names = []
    for _, name, layout, conversion in parts:
        if layout or conversion:
            raise fault(f"{{{name}}} takes no layout of its own; use format, unit and decimals of the feature")
        if name is not None:
            names.append(name)
            if name not in _PLACEHOLDERS[key]:
                raise fault(f"unknown placeholder {{{name}}}; known here: {listed}")
    needed = _NEEDED.get(key)
    if needed and names.count(needed) != 1:
        raise fault(f"needs {{{needed}}} once")


class FeatureWords(Section):
    """How one feature is spoken of."""

    name: str | None = Field(default=None, description="a friendlier name for {name}")
    increase: str | None = Field(default=None, description="instead of words.increase")
    decrease: str | None = Field(default=None, description="instead of words.decrease")
    change: str | None = Field(default=None, description="instead of words.change")
    format: Literal["plain", "money", "percent"] = Field(
        default="plain", description="money: unit before the number; percent: 0.125 is 12.5%"
    )
    unit: str = Field(default="", description="beside the number: $ before money, months or m² after a plain number")
    unit_one: str | None = Field(default=None, description="instead of unit where a plain number reads 1: month")
    decimals: int | None = Field(default=None, ge=0, le=9, description="default: those of the feature's step")
    labels: Labels = Field(default={}, description="category -> text")

    @field_validator("increase", "decrease", "change")
    @classmethod
    def _known(cls, text: str | None, info: ValidationInfo) -> str | None:
        if text is not None:
            _check_template(text, str(info.field_name))
        return text


class Words(Section):
    """The texts of the column `explanation`. They belong to a run, not to the model."""

    model_config = ConfigDict(serialize_by_alias=True)

    to_reach: str = "To get {desired}: {changes}."
    already: str = "Nothing has to change: {desired} is predicted already."
    none: str = "No way to {desired} was found within the rules."
    none_because: str = "No way to {desired} was found within the rules; in the way: {features}."
    increase: str = "raise {name} from {old} to {new}"
    decrease: str = "lower {name} from {old} to {new}"
    change: str = "change {name} from {old} to {new}"
    comma: str = Field(default=", ", description="between changes")
    and_: str = Field(default=" and ", alias="and", description="before the last change")
    more: str = Field(default="{count} smaller changes", description="those after the fourth, if there are several")
    one_more: str = Field(default="1 smaller change", description="the fifth, if it is the last")
    classes: Labels = Field(default={}, description="class -> text for {desired}")
    features: dict[str, FeatureWords] = Field(default={}, description="feature -> how it is spoken of")

    @field_validator(*_PLACEHOLDERS)
    @classmethod
    def _known(cls, text: str, info: ValidationInfo) -> str:
        _check_template(text, str(info.field_name))
        return text
