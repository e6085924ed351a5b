"""Features in words: what the templates say of a change, as numbers into a pool of texts."""

from dataclasses import dataclass, field
from itertools import product
from string import Formatter

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ray_cfnet.config import Words
from ray_cfnet.config.words import FeatureWords, label_text
from ray_cfnet.explain.numbers import Indices, number_texts, shown_decimals, texts_with_decimals_each
from ray_cfnet.tables.codec import CodeArray, Mask
from ray_cfnet.tables.schema import Categorical, Continuous, Feature, FloatArray

UP, DOWN = 0, 1


class Pool:
    """Texts by number; 0 is the empty one."""

    def __init__(self) -> None:
        self._texts = [""]

    def add(self, texts: list[str]) -> int:
        """The number of the first of them."""
        self._texts += texts
        return len(self._texts) - len(texts)

    def texts(self) -> pa.Array:
        return pa.array(self._texts, type=pa.string())


@dataclass
class Changes:
    """The changes of some rows, and the pool with the texts that they alone need."""

    fixed: pa.Array
    pieces: npt.NDArray[np.int32]
    """(slots, features, rows) numbers of texts; where a row does not change a feature, anything."""
    rows: CodeArray = field(init=False)
    kinds: CodeArray = field(init=False)
    """What each is, as a position in the list of all reasons."""

    def __post_init__(self) -> None:
        self.texts = [self.fixed]
        self.num_texts = len(self.fixed)

    def add(self, texts: pa.Array) -> int:
        self.texts.append(texts)
        self.num_texts += len(texts)
        return self.num_texts - len(texts)


@dataclass(frozen=True)
class Slot:
    """A piece of a template: a placeholder with the plain text around it; None: plain text only."""

    before: str
    placeholder: str | None
    after: str = ""


@dataclass
class SpokenNumber:
    feature: Continuous
    name: str
    words: FeatureWords
    templates: tuple[list[Slot], list[Slot]]

    def fill(
        self, found: Changes, position: int, rows: CodeArray, old: npt.NDArray, new: npt.NDArray
    ) -> tuple[FloatArray, CodeArray]:
        """Writes the pieces of the changes and returns (share of the range, up or down) of each."""
        difference = np.abs(new - old)
        ways = np.where(new > old, UP, DOWN)
        pieces = found.pieces[:, position]
        alike = self._read_alike(old, new)
        for (way, slots), exactly in product(enumerate(self.templates), (False, True)):
            here = np.flatnonzero((ways == way) & (alike == exactly))
            if not len(here):
                continue
            pieces[len(slots) :, rows[here]] = 0
            for number, slot in enumerate(slots):
                if slot.placeholder is None:
                    pieces[number, rows[here]] = found.add(pa.array([slot.before]))
                    continue
                values = self._factor * {"old": old, "new": new, "change": difference}[slot.placeholder][here]
                decimals = _to_the_digit_that_differs(self._factor * difference[here]) if exactly else self._decimals
                codes, texts = self._texts(values, slot, decimals)
                pieces[number, rows[here]] = found.add(texts) + codes
        return difference / self.feature.span, ways

    @property
    def _decimals(self) -> int:
        words, decimals = self.words, shown_decimals(self.feature)
        if words.decimals is not None:
            return words.decimals
        if words.format == "money":
            return max(decimals, 2) if decimals else 0  # 12.50, as prices are written
        return max(decimals - 2, 0) if words.format == "percent" else decimals

    @property
    def _factor(self) -> int:
        return 100 if self.words.format == "percent" else 1

    def _read_alike(self, old: FloatArray, new: FloatArray) -> Mask:
        """Changes of values that lie off the grid, or are told with few decimals: from 200 to 200 tells nothing."""
        scale = 10.0**self._decimals
        return np.rint(self._factor * old * scale) == np.rint(self._factor * new * scale)

    def _texts(self, values: FloatArray, slot: Slot, decimals: int | Indices) -> tuple[Indices, pa.Array]:
        words = self.words
        prefix = words.unit if words.format == "money" else ""
        if isinstance(decimals, int):
            codes, texts = number_texts(values, decimals, prefix)
        else:
            codes, texts = texts_with_decimals_each(values, decimals, prefix)
        after: str | pa.Array = {"plain": _set_apart(words.unit), "money": "", "percent": "%"}[
            words.format
        ] + slot.after
        if words.format == "plain" and words.unit_one is not None:
            after = pc.if_else(pc.equal(texts, "1"), _set_apart(words.unit_one) + slot.after, after)
        return codes, pc.binary_join_element_wise(slot.before, texts, after, "")


def _set_apart(unit: str) -> str:
    """A word is, a sign is not."""
    return " " + unit if unit[:1].isalpha() else unit


def _to_the_digit_that_differs(difference: FloatArray) -> Indices:
    """And one more: two values this far apart read differently, and no longer than they must."""
    return np.clip(np.ceil(-np.log10(difference)) + 1, 0, 15).astype(np.int32)


@dataclass
class SpokenCategory:
    feature: Categorical
    name: str
    templates: tuple[list[Slot]]
    first: list[int]
    """For each slot the number of its first text: those of all categories are in the pool from the beginning."""

    def fill(
        self, found: Changes, position: int, rows: CodeArray, old: npt.NDArray, new: npt.NDArray
    ) -> tuple[FloatArray, CodeArray]:
        pieces = found.pieces[:, position]
        pieces[len(self.first) :, rows] = 0
        for number, (slot, first) in enumerate(zip(self.templates[0], self.first, strict=True)):
            pieces[number, rows] = first + ({"old": old, "new": new}[slot.placeholder] if slot.placeholder else 0)
        return np.ones(len(rows)), np.zeros(len(rows), dtype=np.int64)


def spoken(feature: Feature, words: Words, pool: Pool) -> SpokenNumber | SpokenCategory:
    own = words.features.get(feature.name, FeatureWords())
    name = feature.name if own.name is None else own.name
    if isinstance(feature, Continuous):
        increase = _slots(words.increase if own.increase is None else own.increase, name)
        decrease = _slots(words.decrease if own.decrease is None else own.decrease, name)
        return SpokenNumber(feature, name, own, (increase, decrease))
    labels = [own.labels.get(label_text(label), label_text(label)) for label in feature.categories]
    change = _slots(words.change if own.change is None else own.change, name)
    first = [
        pool.add([slot.before + label + slot.after for label in labels] if slot.placeholder else [slot.before])
        for slot in change
    ]
    return SpokenCategory(feature, name, (change,), first)


def _slots(template: str, name: str) -> list[Slot]:
    slots: list[Slot] = []
    before = ""
    for literal, placeholder, _, _ in Formatter().parse(template):
        before += literal + (name if placeholder == "name" else "")
        if placeholder not in (None, "name"):
            slots.append(Slot(before, placeholder))
            before = ""
    if not slots:
        return [Slot(before, None)]
    slots[-1] = Slot(slots[-1].before, slots[-1].placeholder, before)
    return slots


def around(template: str, placeholder: str, desired: str) -> tuple[str, str]:
    """The text before and after a placeholder."""
    parts: list[str] = [""]
    for literal, name, _, _ in Formatter().parse(template):
        parts[-1] += literal + (desired if name == "desired" else "")
        if name == placeholder:
            parts.append("")
    return parts[0], parts[1]


def filled(template: str, **values: str) -> str:
    return "".join(literal + (values[name] if name else "") for literal, name, _, _ in Formatter().parse(template))
