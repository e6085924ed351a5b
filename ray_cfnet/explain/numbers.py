"""Numbers as texts with thousands separators, a whole column at a time."""

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ray_cfnet.tables.schema import Continuous, FloatArray

Indices = npt.NDArray[np.int32]

_FEW = 65_536
_TRIPLES = np.array([list(f"{number:03d}".encode()) for number in range(1000)], dtype=np.uint8)
_POWERS = 10 ** np.arange(1, 19, dtype=np.int64)
_SHOWN_SHARE = 4


def shown_decimals(feature: Continuous) -> int:
    """Those of the feature's grid; without one as many as show a ten-thousandth of its range."""
    if feature.grid is not None:
        return feature.grid.decimals
    return int(np.clip(_SHOWN_SHARE - np.floor(np.log10(feature.span)), 0, 15))


def number_texts(values: FloatArray, decimals: int, prefix: str = "") -> tuple[Indices, pa.Array]:
    """(codes, texts): `values[i]` reads `texts[codes[i]]`, such as -$1,234.50 with `prefix` $.

    Exact for all values that have this many decimals. Those too large to have them are written as Arrow does.
    """
    scaled = np.rint(values * 10.0**decimals)
    # Up to here the product is less than a half away from the whole number it stands for.
    too_large = ~(np.abs(scaled) < (2.0**51 if decimals else 2.0**53))
    some_too_large = bool(too_large.any())
    if some_too_large:
        scaled[too_large] = 0.0
    codes, numbers = _distinct(scaled.astype(np.int64))
    texts = _signed(_unsigned(np.abs(numbers), decimals), numbers < 0, prefix)
    if some_too_large:
        large = values[too_large]
        codes[too_large] = len(texts) + np.arange(len(large), dtype=np.int32)
        texts = pa.concat_arrays([texts, _as_arrow_writes(large, prefix)])
    return codes, texts


def texts_with_decimals_each(values: FloatArray, decimals: Indices, prefix: str = "") -> tuple[Indices, pa.Array]:
    """The same for values that have different numbers of decimals."""
    codes, texts, num_texts = np.empty(len(values), dtype=np.int32), [], 0
    for count in np.unique(decimals).tolist():
        some = np.flatnonzero(decimals == count)
        own_codes, own_texts = number_texts(values[some], count, prefix)
        codes[some] = num_texts + own_codes
        texts.append(own_texts)
        num_texts += len(own_texts)
    return codes, pa.concat_arrays(texts)


def _as_arrow_writes(values: FloatArray, prefix: str) -> pa.Array:
    return _signed(pc.cast(pa.array(np.abs(values)), pa.string()), values < 0, prefix)


def _distinct(numbers: npt.NDArray[np.int64]) -> tuple[Indices, npt.NDArray[np.int64]]:
    """(codes, distinct numbers), or every number for itself where they lie too far apart to be few."""
    if len(numbers) == 0:
        return np.empty(0, dtype=np.int32), numbers
    lowest = numbers.min()
    width = int(numbers.max() - lowest) + 1
    if width > max(_FEW, 16 * len(numbers)):
        return np.arange(len(numbers), dtype=np.int32), numbers
    # No sorting, no hashing: a flag for each number in between.
    offsets = numbers - lowest
    there = np.zeros(width, dtype=bool)
    there[offsets] = True
    distinct = np.flatnonzero(there)
    code_of = np.empty(width, dtype=np.int32)
    code_of[distinct] = np.arange(len(distinct), dtype=np.int32)
    return code_of[offsets], distinct + lowest


def _signed(texts: pa.Array, negative: npt.NDArray[np.bool_], prefix: str) -> pa.Array:
    if not prefix and not negative.any():
        return texts
    return pc.binary_join_element_wise(pc.if_else(pa.array(negative), "-" + prefix, prefix), texts, "")


def _unsigned(numbers: npt.NDArray[np.int64], decimals: int) -> pa.Array:
    """Numbers without their point, written with it: 1234567 with 2 decimals is 12,345.67."""
    whole, fraction = np.divmod(numbers, 10**decimals)
    digits = 1 + np.searchsorted(_POWERS, whole, side="right")
    num_groups = (int(digits.max(initial=1)) + 2) // 3
    width = 4 * num_groups - 1
    tail = 1 + decimals if decimals else 0
    # Right-aligned in a matrix of characters, a group of three digits at a time, least first; then without the blanks.
    characters = np.full((len(numbers), width + tail), ord(","), dtype=np.uint8)
    for end in range(width, 0, -4):
        whole, group = np.divmod(whole, 1000)
        characters[:, end - 3 : end] = _TRIPLES[group]
    if decimals:
        characters[:, width] = ord(".")
        for place in range(width + decimals, width, -1):
            fraction, digit = np.divmod(fraction, 10)
            characters[:, place] = digit + ord("0")
    lengths = digits + (digits - 1) // 3 + tail
    shown = np.arange(width + tail) >= (width + tail - lengths)[:, None]
    ends = np.zeros(len(numbers) + 1, dtype=np.int32)
    np.cumsum(lengths, out=ends[1:])
    return pa.StringArray.from_buffers(len(numbers), pa.py_buffer(ends), pa.py_buffer(characters[shown]))
