"""What a bundle remembers of its training rows: examples of each class, and which values go together."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import safetensors.numpy

from ray_cfnet.tables.codec import CodeArray, Encoded
from ray_cfnet.tables.schema import TableSchema
from ray_cfnet.tables.usual import Usual

Floats = npt.NDArray[np.float32]

PROTOTYPES = 128
"""Examples kept of each class."""

_USUAL = ("edges", "code_bins", "code_starts", "parents", "sizes", "tables", "quantiles")


@dataclass(frozen=True)
class Reference:
    """Examples are rows as people have them, so what leads to one of them is a way that somebody could go."""

    prototypes: Encoded
    classes: CodeArray
    """The class that is predicted for each prototype."""
    usual: Usual

    @classmethod
    def of(cls, rows: Encoded, predicted: CodeArray, probability: Floats, schema: TableSchema) -> "Reference":
        """From training rows with their predicted classes and those classes' probabilities."""
        chosen = [_clear_cases(np.flatnonzero(predicted == label), probability) for label in np.unique(predicted)]
        places = np.concatenate(chosen)
        return cls(rows.take(places), predicted[places], Usual.counted(rows, schema))

    def of_class(self, label: int) -> Encoded:
        return self.prototypes.take(self.classes == label)

    def to_bytes(self) -> bytes:
        arrays = {"values": self.prototypes.values, "codes": self.prototypes.codes, "classes": self.classes}
        arrays |= {f"usual_{name}": getattr(self.usual, name) for name in _USUAL}
        return safetensors.numpy.save({name: np.ascontiguousarray(array) for name, array in arrays.items()})

    @classmethod
    def from_bytes(cls, content: bytes) -> "Reference":
        arrays = safetensors.numpy.load(content)
        usual = Usual(**{name: arrays[f"usual_{name}"] for name in _USUAL})
        return cls(Encoded(arrays["values"], arrays["codes"]), arrays["classes"], usual)


def _clear_cases(members: CodeArray, probability: Floats) -> CodeArray:
    """Evenly spaced rows of the surer half: near the border another value of an immutable feature changes the class."""
    sure = members[probability[members] >= np.median(probability[members])]
    return sure[np.unique(np.linspace(0, len(sure) - 1, PROTOTYPES).round().astype(np.int64))]
