"""The reasons and the sentence of every row, from templates, without a look at single rows.

A sentence is a list of pieces: an opening, for each change a separator and the slots of its template, a closing.
Pieces are numbers into a pool of texts that holds each distinct text once ("raise income from 40,900", " to 52,900"),
so that the work is done per distinct text and per change; Arrow joins the pieces at the end.
"""

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ray_cfnet.config import Words
from ray_cfnet.config.words import label_text
from ray_cfnet.errors import ConfigError
from ray_cfnet.explain.columns import REASONS
from ray_cfnet.explain.phrases import Changes, Pool, SpokenNumber, around, filled, spoken
from ray_cfnet.tables.codec import CodeArray, Encoded, Mask, bitmap, label_column
from ray_cfnet.tables.rulewords import rule_code
from ray_cfnet.tables.schema import Continuous, TableSchema

_BLOCK_ROWS = 131_072
_SHARE_BITS = 31


def no_words(num_rows: int) -> dict[str, pa.Array]:
    """The columns of a run without words."""
    return dict.fromkeys((*REASONS, "explanation"), pa.nulls(num_rows, pa.string()))


class Wording:
    """The words of a configuration for the features and classes of a schema.

    Raises ConfigError when the words name a class that the target does not have.
    """

    def __init__(self, words: Words, schema: TableSchema) -> None:
        self.schema = schema
        self._pool = Pool()
        self._features = [spoken(feature, words, self._pool) for feature in schema.features]
        self._num_slots = max(len(slots) for feature in self._features for slots in feature.templates)
        self._names = self._pool.add([feature.name for feature in self._features])
        ways = [("increase", "decrease") if isinstance(f, Continuous) else ("change",) for f in schema.features]
        # What a change can be, feature by feature; then the rules. No code twice: Parquet's dictionaries want it so.
        self._reasons = (
            *(f"{f.name}:{way}" for f, known in zip(schema.features, ways, strict=True) for way in known),
            *(f"{f.name}:{rule_code(f, schema.rules)}" for f in schema.features),
        )
        self._feature_of_kind = np.repeat(np.arange(len(ways)), [len(known) for known in ways])
        self._add_frame(words)

    def _add_frame(self, words: Words) -> None:
        """What stands around the changes, for each desired class."""
        labels = [label_text(label) for label in self.schema.target.classes]
        unknown = words.classes.keys() - set(labels)
        if unknown:
            listed = f"{', '.join(sorted(unknown))} not among {', '.join(labels)}, the classes of"
            raise ConfigError("words.classes", [f"{listed} {self.schema.target.name}"])
        classes = [words.classes.get(label, label) for label in labels]
        pool = self._pool
        reach = [around(words.to_reach, "changes", desired) for desired in classes]
        because = [around(words.none_because, "features", desired) for desired in classes]
        self._opening = pool.add([opening for opening, _ in reach])
        self._because = pool.add([opening for opening, _ in because])
        self._because_end = pool.add([closing for _, closing in because])
        self._already = pool.add([filled(words.already, desired=desired) for desired in classes])
        self._none = pool.add([filled(words.none, desired=desired) for desired in classes])
        self._separators = pool.add(["", words.comma, words.and_])
        # The end of a sentence that left out 0, 1, 2, ... changes, class by class.
        more = ["", words.one_more, *(filled(words.more, count=str(n)) for n in range(2, len(self._features)))]
        ends = [words.and_ + text if text else "" for text in more]
        self._ends = pool.add([end + closing for end in ends for _, closing in reach])

    def columns(
        self,
        rows: Encoded,
        fcf: Encoded,
        told: Mask,
        wants: Mask,
        desired: CodeArray,
        binding: npt.NDArray[np.integer] | None = None,
        importance: npt.NDArray[np.floating] | None = None,
    ) -> dict[str, pa.ChunkedArray]:
        """reason_1 to reason_4 and explanation, by name.

        `told` are the rows with a feasible counterfactual, `wants` those that needed one. `binding` (N, 4) holds
        positions of the features whose rules leave a row without a way, -1 for none; `importance` (N, features) orders
        the changes, instead of their share of the feature's range (1 for another category).
        """
        blocks = []
        for start in range(0, max(len(rows), 1), _BLOCK_ROWS):
            part = slice(start, start + _BLOCK_ROWS)
            changes = self._changes(
                rows.take(part), fcf.take(part), told[part], None if importance is None else importance[part]
            )
            bound = None if binding is None else binding[part]
            blocks.append(self._written(changes, told[part], wants[part], desired[part], bound))
        return {name: pa.chunked_array([block[name] for block in blocks]) for name in blocks[0]}

    def _changes(self, rows: Encoded, fcf: Encoded, told: Mask, importance: npt.NDArray[np.floating] | None) -> Changes:
        """All changes, row by row, in each row the most important first."""
        found = Changes(self._pool.texts(), np.empty((self._num_slots, len(self._features), len(rows)), np.int32))
        kind_bits = len(self._feature_of_kind).bit_length()
        keys: list[npt.NDArray[np.int64]] = []
        next_value = next_code = next_kind = 0
        for position, feature in enumerate(self._features):
            if isinstance(feature, SpokenNumber):
                old: npt.NDArray = rows.values[:, next_value]
                new: npt.NDArray = fcf.values[:, next_value]
                next_value += 1
            else:
                old, new = rows.codes[:, next_code], fcf.codes[:, next_code]
                next_code += 1
            first_kind, next_kind = next_kind, next_kind + len(feature.templates)
            changed = np.flatnonzero((old != new) & told)
            if not len(changed):
                continue
            shares, ways = feature.fill(found, position, changed, old[changed], new[changed])
            if importance is not None:
                shares = np.maximum(importance[changed, position], 0) + 0.0  # -0.0 has the bits of a negative number
            # One number to sort by: the row, the share (the bits of a float that is not negative are in its order),
            # the feature. Sorting numbers themselves is several times faster than sorting positions by them.
            key = (changed << _SHARE_BITS) | (2**_SHARE_BITS - 1 - shares.astype(np.float32).view(np.int32))
            keys.append((key << kind_bits) | (first_kind + ways))
        ordered = np.sort(np.concatenate(keys)) if keys else np.empty(0, dtype=np.int64)
        found.rows, found.kinds = ordered >> (_SHARE_BITS + kind_bits), ordered & (2**kind_bits - 1)
        return found

    def _written(
        self, found: Changes, told: Mask, wants: Mask, desired: CodeArray, binding: npt.NDArray | None
    ) -> dict[str, pa.Array]:
        num_rows = len(told)
        counts = np.bincount(found.rows, minlength=num_rows)
        places = np.arange(len(found.rows)) - np.repeat(np.cumsum(counts) - counts, counts)
        rows, kinds = found.rows, found.kinds
        if counts.max(initial=0) > len(REASONS):
            first = np.flatnonzero(places < len(REASONS))
            rows, kinds, places = rows[first], kinds[first], places[first]
        # Flat positions: numpy takes by one index several times faster than by three.
        pieces = found.pieces.reshape(self._num_slots, -1).take(self._feature_of_kind[kinds] * num_rows + rows, axis=1)
        said = np.minimum(counts, len(REASONS))
        opening = np.where(wants, self._none, self._already) + desired
        opening[told] = self._opening + desired[told]
        ends = self._ends + (counts - said) * len(self.schema.target.classes) + desired
        if binding is not None:
            bound = (binding >= 0) & (wants & ~told)[:, None]
            bound_rows, columns = np.nonzero(bound)
            features = binding[bound_rows, columns].astype(np.int64)
            rows = np.concatenate([rows, bound_rows])
            places = np.concatenate([places, (np.cumsum(bound, axis=1) - 1)[bound_rows, columns]])
            kinds = np.concatenate([kinds, len(self._feature_of_kind) + features])
            names = np.zeros((self._num_slots, len(features)), dtype=np.int32)
            names[0] = self._names + features
            pieces = np.concatenate([pieces, names], axis=1)
            said = said + bound.sum(axis=1)
            because = bound.any(axis=1)
            opening[because] = self._because + desired[because]
            ends[because] = self._because_end + desired[because]
        # All of a sentence's separators are commas but the last, and that too where the end goes on with an "and".
        last = places == np.where(counts > len(REASONS), -1, said - 1)[rows]
        separators = self._separators + (places > 0) * (1 + last)
        lengths = np.where(said > 0, 2 + said * (1 + self._num_slots), 1)
        stops = np.cumsum(lengths)
        ids = np.zeros(int(stops[-1]) if num_rows else 0, dtype=np.int32)
        ids[stops - 1] = ends  # a sentence of one piece has no end of its own: the opening replaces it
        ids[stops - lengths] = opening
        at = (stops - lengths)[rows] + 1 + places * (1 + self._num_slots)
        ids[at] = separators
        for slot, numbers in enumerate(pieces, start=1):
            ids[at + slot] = numbers
        starts = pa.array(np.concatenate([[0], stops]).astype(np.int32))
        texts = pa.concat_arrays(found.texts).take(pa.array(ids))
        return {
            **self._codes(places * num_rows + rows, kinds, said),
            "explanation": pc.binary_join(pa.ListArray.from_arrays(starts, texts), ""),
        }

    def _codes(self, at: CodeArray, kinds: CodeArray, said: CodeArray) -> dict[str, pa.Array]:
        """The reasons, `at` being their positions when all first ones stand before all second ones, and so on."""
        codes = np.zeros(len(REASONS) * len(said), dtype=np.int32)
        codes[at] = kinds
        return {
            name: label_column(column, self._reasons, pa.string(), bitmap(said > place))
            for place, (name, column) in enumerate(zip(REASONS, np.split(codes, len(REASONS)), strict=True))
        }
