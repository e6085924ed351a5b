"""A table in, an explained table out: predict -> counterfactual -> project -> prove -> columns.

Every flag and probability is computed on the values that are written: rounded, typed and encoded anew.
"""

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import torch

from ray_cfnet import config
from ray_cfnet.config.words import label_text
from ray_cfnet.errors import BundleError, ConfigError
from ray_cfnet.explain.columns import ROW_STATUS, option_prefixes, output_schema, rejects_schema
from ray_cfnet.explain.explanations import (
    ALREADY_DESIRED,
    NO_FEASIBLE_CF,
    NUM_REASONS,
    OK,
    Explanations,
    Floats,
    Option,
)
from ray_cfnet.explain.options import OptionFinder, is_new, nearest_first
from ray_cfnet.explain.refine import Refiner, least_lead
from ray_cfnet.explain.repair import Repairer
from ray_cfnet.explain.words import Wording, no_words
from ray_cfnet.model.bundle import Bundle
from ray_cfnet.model.inference import Inference, likeliest
from ray_cfnet.model.metrics import distances, num_changed
from ray_cfnet.model.net import Rows
from ray_cfnet.model.reference import Reference
from ray_cfnet.tables.codec import (
    REJECT_REASONS,
    CodeArray,
    Encoded,
    Mask,
    Rejects,
    bitmap,
    decode,
    encode,
    flag_column,
    from_unit,
    label_column,
    number_column,
    to_unit,
)
from ray_cfnet.tables.constraints import project
from ray_cfnet.tables.schema import FloatArray, TableSchema

BATCH_ROWS = 32_768
"""Rows per forward pass: refinement makes many small steps, whose fixed cost is shared by these; more gain nothing."""


class Explainer:
    """Applies a bundle to Arrow data. Pure: the same rows always give the same columns."""

    def __init__(
        self,
        bundle: Bundle,
        desired: int | None,
        settings: config.Explain | None = None,
        words: config.Words | None = None,
    ) -> None:
        """Without `settings`, what the network gives, projected: nothing is refined, repaired or left out."""
        self.bundle = bundle
        self.schema = bundle.schema
        self.net = bundle.net.eval()
        self.device = next(bundle.net.parameters()).device
        self.desired = desired
        self.num_options = settings.num_options if settings is not None else 1
        self._inference = Inference(self.net)
        self._refiner: Refiner | None = None
        self._repairer: Repairer | None = None
        self._repairs, self._margin = False, 0.0
        self._only: int | None = None
        self._wording = Wording(words, self.schema) if words else None
        if settings is not None:
            self._only = selected_class(settings.only, self.schema)
            self._search_with(settings)

    def _search_with(self, settings: config.Explain) -> None:
        reference = self.bundle.reference
        if reference is None and (settings.plausibility > 0 or settings.num_options > 1):
            raise BundleError(
                f"bundle {self.bundle.id} keeps no training rows: it cannot serve explain.plausibility or num_options",
                "train it again with this version, or set explain.plausibility: 0 and explain.num_options: 1",
            )
        if settings.refine == "sparse":
            usual = reference.usual if reference is not None and settings.plausibility > 0 else None
            self._refiner = Refiner(self._inference, self.schema, settings.margin, usual, settings.plausibility)
        self._repairs, self._margin = settings.repair, settings.margin
        if reference is not None and (settings.repair or settings.num_options > 1):
            self._repairer = Repairer(self._inference, self.schema, reference, least_lead(settings.margin))

    def explain(self, rows: Encoded) -> Explanations:
        """Explains rows without rejects."""
        found = Explanations.to_fill(rows, self.num_options)
        for start in range(0, len(rows), BATCH_ROWS):
            batch = found.take(slice(start, start + BATCH_ROWS))
            if self._only is None:
                self._explain_batch(batch)
            else:
                self._explain_selected(batch, self._only)
        return found

    def _explain_selected(self, found: Explanations, only: int) -> None:
        """Explains the rows of one predicted class; of the others only the prediction is filled in."""
        found.predicted[:], found.probability[:] = self._predicted(found.rows)
        found.keep_rows()
        chosen = found.predicted == only
        part = Explanations.to_fill(found.rows.take(chosen), self.num_options)
        self._explain_batch(part)
        found.put(chosen, part)

    def _explain_batch(self, found: Explanations) -> None:
        """Fills in what is to be known about `found.rows`."""
        rows = self._tensors(found.rows)
        seen = self._inference.predict(rows)
        predicted = likeliest(seen.probabilities)
        found.predicted[:] = _numpy(predicted)
        found.probability[:] = _of_classes(seen.probabilities, predicted)
        desired = self.wanted(found.predicted)
        numbers, codes = self._inference.generate(rows, seen)
        from_unit(_numpy(numbers).T, self.schema, out=found.cf.values)
        if self.net.gated:  # what is kept is kept as it is, also off the grid and outside the training range
            kept = _numpy(numbers == rows.continuous.T).T
            np.copyto(found.cf.values, found.rows.values, where=kept)
        for column, category in enumerate(codes):
            found.cf.codes[:, column] = _numpy(category)
        self._prove(found.cf, desired, found.cf_valid, found.cf_probability)
        project(found.rows, found.cf, self.schema, out=found.fcf)
        self._prove(found.fcf, desired, found.fcf_valid, found.fcf_probability)
        asking = found.predicted != desired
        if self._repairer is not None and self._repairs:
            # With a margin, those that reach the class by less are searched too: the repairer knows which.
            lacking = asking if self._margin > 0 else asking & ~found.fcf_valid
            self._repair(self._repairer, found, desired, np.flatnonzero(lacking))
        told = np.flatnonzero(asking & found.fcf_valid)
        candidates = found.fcf.take(told) if self.num_options > 1 else None
        self._refine(found, desired, told)
        if candidates is not None:
            self._find_options(found, desired, told, candidates)
        found.status[:] = np.where(found.fcf_valid, OK, NO_FEASIBLE_CF)
        found.status[~asking] = ALREADY_DESIRED
        stuck = np.flatnonzero(found.status == NO_FEASIBLE_CF)
        if len(stuck):
            found.binding[stuck] = binding_features(self._held_back(found, desired, stuck), self.schema)

    def predicted(self, rows: Encoded) -> CodeArray:
        """(N,) the predicted classes of rows without rejects."""
        return self._predicted(rows)[0]

    def _predicted(self, rows: Encoded) -> tuple[CodeArray, Floats]:
        """(N,) the predicted classes, and their probabilities."""
        classes, probability = np.empty(len(rows), dtype=np.int64), np.empty(len(rows), dtype=np.float32)
        for start in range(0, len(rows), BATCH_ROWS):
            part = slice(start, start + BATCH_ROWS)
            probabilities = self._inference.predict(self._tensors(rows.take(part))).probabilities
            likely = likeliest(probabilities)
            classes[part], probability[part] = _numpy(likely), _of_classes(probabilities, likely)
        return classes, probability

    def reference(self, rows: Encoded) -> Reference:
        """What the bundle is to remember of these training rows."""
        return Reference.of(rows, *self._predicted(rows), self.schema)

    def wanted(self, predicted: CodeArray) -> CodeArray:
        """(N,) the classes that rows of these predicted classes should reach."""
        if self.desired is not None:
            return np.full_like(predicted, self.desired)
        if self.net.num_classes != 2:
            raise ValueError("the opposite class exists for two classes only; name the desired class")
        return 1 - predicted

    def _prove(self, candidates: Encoded, desired: CodeArray, valid: Mask, probability: Floats) -> None:
        """Fills in whether each candidate is predicted as desired, and with which probability."""
        probabilities = self._inference.predict(self._tensors(candidates)).probabilities
        np.equal(_numpy(likeliest(probabilities)), desired, out=valid)
        probability[:] = _of_classes(probabilities, torch.from_numpy(desired).to(self.device))

    def _refine(self, found: Explanations, desired: CodeArray, some: CodeArray) -> None:
        """Leaves out changes of the rows that have a feasible counterfactual."""
        if self._refiner is None or not len(some):
            return
        refined = self._refiner.refined(found.rows.take(some), found.fcf.take(some), desired[some])
        valid, probability = self._proof(refined, desired[some])
        # Trials add up in another order than the proof: one that does not hold to the last digit is not taken.
        some = some[valid]
        found.fcf.put(some, refined if valid.all() else refined.take(valid))
        found.fcf_probability[some] = probability[valid]

    def _repair(self, repairer: Repairer, found: Explanations, desired: CodeArray, some: CodeArray) -> None:
        """Searches for the rows whose feasible counterfactual does not reach the desired class, or not far enough."""
        if not len(some):
            return
        repaired, reached = repairer.repaired(found.rows.take(some), found.fcf.take(some), desired[some])
        valid, probability = self._proof(repaired, desired[some])
        better = valid & (reached | ~found.fcf_valid[some])
        some = some[better]
        found.fcf.put(some, repaired.take(better))
        found.fcf_valid[some], found.fcf_probability[some] = True, probability[better]

    def _find_options(self, found: Explanations, desired: CodeArray, some: CodeArray, candidates: Encoded) -> None:
        """Further feasible counterfactuals of the rows that have one, the nearest first."""
        if self._repairer is None or not len(some):
            return
        rows, wanted = found.rows.take(some), desired[some]
        finder = OptionFinder(self.schema, self._repairer, self._refiner)
        proven = [Option(found.fcf.take(some), np.ones(len(some), dtype=bool), found.fcf_probability[some])]
        for fcf, reached in finder.others(rows, proven[0].fcf, candidates, wanted, self.num_options - 1):
            valid, probability = self._proof(fcf, wanted)
            # Of a row whose first answer misses the margin no more is asked than that.
            sure = reached | (probability >= proven[0].probability)
            proven.append(Option(fcf, valid & sure & is_new(rows, fcf, proven), probability))
        first, *others = nearest_first(rows, proven, self.schema)
        found.fcf.put(some, first.fcf)
        found.fcf_probability[some] = first.probability
        for option, other in zip(found.options, others, strict=True):
            option.fcf.put(some, other.fcf)
            option.exists[some], option.probability[some] = other.exists, other.probability

    def _held_back(self, found: Explanations, desired: CodeArray, stuck: CodeArray) -> FloatArray:
        """(N, F) how much the rules are in the way of rows without an answer, feature by feature."""
        if self._repairer is not None:
            return self._repairer.held_back(found.rows.take(stuck), desired[stuck])
        # Without examples of the class: how far they moved what the network proposes.
        cf, fcf = found.cf.take(stuck), found.fcf.take(stuck)
        spans = np.array([feature.span for feature in self.schema.continuous])
        return np.concatenate([np.abs(cf.values - fcf.values) / spans, cf.codes != fcf.codes], axis=1)

    def _proof(self, candidates: Encoded, desired: CodeArray) -> tuple[Mask, Floats]:
        """Whether each candidate is predicted as desired, and with which probability."""
        valid, probability = np.empty(len(desired), dtype=bool), np.empty(len(desired), dtype=np.float32)
        self._prove(candidates, desired, valid, probability)
        return valid, probability

    def _tensors(self, rows: Encoded) -> Rows:
        """Encoded rows for inference: columns stay contiguous."""
        continuous = torch.from_numpy(to_unit(rows.values, self.schema))
        return Rows(continuous.to(self.device), torch.from_numpy(rows.codes).to(self.device))

    def explain_table(self, table: pa.Table, run_id: str) -> tuple[pa.Table, pa.Table, Explanations]:
        """(explained rows, rejected rows, the numbers behind): together every row of the table, in order."""
        encoded, rejects = encode(table, self.schema)
        good = rejects.good
        if good.all():
            kept, rejected = table, table.slice(0, 0)
        else:
            kept, rejected = table.filter(pa.array(good)), table.filter(pa.array(~good))
            encoded = encoded.take(good)
        explanations = self.explain(encoded)
        return (
            self._output(kept, explanations, run_id),
            self._reject_columns(rejected, rejects),
            explanations,
        )

    def _output(self, table: pa.Table, found: Explanations, run_id: str) -> pa.Table:
        schema = output_schema(self.schema, table.schema, self.num_options)
        types = {name: table.schema.field(name).type for name in self.schema.feature_names}
        classes, label_type = self.schema.target.classes, schema.field("pred_label").type
        explained, wants_fcf = bitmap(found.is_explained), bitmap(found.wants_fcf)
        cf = decode(found.cf, self.schema, types, explained)
        added = {
            "pred_label": label_column(found.predicted, classes, label_type),
            "pred_proba": pa.array(found.probability),
            **{f"cf_{name}": column for name, column in cf.items()},
            "cf_valid": flag_column(found.cf_valid, explained),
            "cf_proba": number_column(found.cf_probability, explained),
            **self._words(found),
            "row_status": label_column(found.status, ROW_STATUS, pa.string()),
            "model_id": _constant(self.bundle.id, len(table)),
            "run_id": _constant(run_id, len(table)),
        }
        ways = [Option(found.fcf, found.has_fcf, found.fcf_probability), *found.options]
        for prefix, way in zip(option_prefixes(self.num_options), ways, strict=True):
            exists = bitmap(way.exists)
            values = decode(way.fcf, self.schema, types, exists)
            far = distances(found.rows, way.fcf, self.schema).astype(np.float32)
            added |= {f"{prefix}{name}": column for name, column in values.items()}
            added |= {
                f"{prefix}valid": flag_column(way.exists, wants_fcf),
                f"{prefix}proba": number_column(way.probability, exists),
                f"{prefix}num_changed": number_column(num_changed(found.rows, way.fcf), exists),
                f"{prefix}distance": number_column(far, exists),
            }
        names = schema.names[len(table.schema) :]
        return pa.table([*table.columns, *(added[name] for name in names)], names=schema.names)

    def _words(self, found: Explanations) -> dict[str, pa.Array]:
        if self._wording is None:
            return no_words(len(found.rows))
        desired = self.wanted(found.predicted)
        words = self._wording.columns(found.rows, found.fcf, found.has_fcf, found.wants_fcf, desired, found.binding)
        if self._only is not None:  # nothing is said about rows that were not asked for
            asked = pa.array(found.is_explained)
            words = {name: pc.if_else(asked, column, pa.scalar(None, column.type)) for name, column in words.items()}
        return words

    def _reject_columns(self, rejected: pa.Table, rejects: Rejects) -> pa.Table:
        bad = ~rejects.good
        reasons = label_column(rejects.reason[bad], REJECT_REASONS, pa.string())
        columns = label_column(rejects.feature[bad], tuple(self.schema.feature_names), pa.string())
        names = rejects_schema(rejected.schema).names
        return pa.table([*rejected.columns, reasons, columns], names=names)


def selected_class(only: str, schema: TableSchema) -> int | None:
    """The class that `explain.only` names; None for all. Raises ConfigError when there is no such class."""
    if only == "all":
        return None
    column, _, label = only.partition("=")
    names = [label_text(name) for name in schema.target.classes]
    if column != "pred_label" or label not in names:
        listed = " or ".join(f"pred_label={name}" for name in names)
        raise ConfigError("explain.only", [f"{only!r} is neither all nor {listed}"])
    return names.index(label)


def binding_features(held_back: FloatArray, schema: TableSchema) -> npt.NDArray[np.int16]:
    """(N, 4) the features (as positions in the schema) that the rules hold back most, -1 for none."""
    order = np.argsort(-held_back, axis=1, kind="stable")[:, :NUM_REASONS]
    position = np.array([schema.features.index(feature) for feature in (*schema.continuous, *schema.categorical)])
    binding = np.full((len(held_back), NUM_REASONS), -1, dtype=np.int16)
    binding[:, : order.shape[1]] = np.where(np.take_along_axis(held_back, order, axis=1) > 0, position[order], -1)
    return binding


def tensors(rows: Encoded, schema: TableSchema, device: torch.device) -> Rows:
    """Encoded rows as training takes them: row by row, to pick batches from."""
    continuous = torch.from_numpy(np.ascontiguousarray(to_unit(rows.values, schema)))
    return Rows(continuous.to(device), torch.from_numpy(np.ascontiguousarray(rows.codes)).to(device))


def _of_classes(probabilities: torch.Tensor, classes: torch.Tensor) -> Floats:
    """(N,) of (classes, N) probabilities, that of each row's class."""
    return _numpy(probabilities.gather(0, classes[None])[0])


def _numpy(tensor: torch.Tensor) -> npt.NDArray:
    return tensor.cpu().numpy()


def _constant(value: str, num_rows: int) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(num_rows, dtype=np.int32)), pa.array([value]))
