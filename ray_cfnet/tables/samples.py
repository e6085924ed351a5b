"""Tables that need no download: synthetic loan applications, and scikit-learn's breast cancer data."""

import json
import re
from datetime import date, timedelta

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from ray_cfnet.config import Sample, Table
from ray_cfnet.tables.storage import Location

_DAYS = 8
_LAST_DAY = date(2026, 11, 15)
_ROW_GROUP_ROWS = 250_000
_MARKER = "_sample.json"
_OURS = re.compile(r"ds=[0-9-]{10}/part-0\.parquet|cancer\.parquet")

EDUCATION = ["none", "school", "vocational", "bachelor", "master"]
TERMS = [12, 24, 36, 48, 60]


def make_sample(table: Table) -> None:
    """Writes the table's sample where `table.path` has none yet, or an older one with other settings.

    A directory without this module's marker is somebody's data and is never touched.
    """
    if table.sample is None:
        return
    root = Location.of(table.path)
    wanted = json.dumps(table.sample.model_dump(), sort_keys=True).encode()
    marker = root / _MARKER
    if marker.exists():
        if marker.read_bytes() == wanted:
            return
        for file in root.files():
            if _OURS.fullmatch(file.path):
                (root / file.path).delete()
    elif root.exists() and (not root.is_dir() or root.files()):
        return
    marker.write_bytes(b"incomplete")
    if table.sample.name == "loans":
        _write_loans(root, table.sample)
    else:
        _write(root / "cancer.parquet", [cancer_table()])
    marker.write_bytes(wanted)


def _write(file: Location, tables: list[pa.Table]) -> None:
    with file.atomic_sink() as sink, pq.ParquetWriter(sink, tables[0].schema, compression="zstd") as writer:
        for table in tables:
            writer.write_table(table)


def _write_loans(root: Location, sample: Sample) -> None:
    per_day = np.diff(np.linspace(0, sample.rows, _DAYS + 1).astype(int))
    first = 0
    for day, rows in enumerate(per_day):
        ds = _LAST_DAY - timedelta(days=_DAYS - 1 - day)
        file = root / f"ds={ds.isoformat()}" / "part-0.parquet"
        schema = loans_table(1, first, sample.seed).schema
        with file.atomic_sink() as sink, pq.ParquetWriter(sink, schema, compression="zstd") as writer:
            for start in range(first, first + rows, _ROW_GROUP_ROWS):
                writer.write_table(loans_table(min(_ROW_GROUP_ROWS, first + rows - start), start, sample.seed))
        first += rows


def loans_table(num_rows: int, first_id: int, seed: int) -> pa.Table:
    """Loan applications numbered from `first_id`; the same numbers and seed give the same rows.

    The decision follows from a score of the columns plus noise, so that a good model reaches about
    0.87 accuracy and no model reaches 1.
    """
    rng = np.random.default_rng([seed, first_id])
    age = np.clip(rng.gamma(9.0, 4.6, num_rows), 18, 85).astype(np.int64)
    education = rng.choice(len(EDUCATION), num_rows, p=[0.06, 0.34, 0.26, 0.24, 0.10])
    gender = rng.choice(2, num_rows)
    region = rng.choice(4, num_rows, p=[0.35, 0.30, 0.20, 0.15])
    years_employed = np.round(np.minimum(rng.exponential(7.0, num_rows), age - 16), 1)
    income = _steps(18_000 * np.exp(0.14 * education + 0.02 * years_employed + rng.normal(0.35, 0.38, num_rows)), 100)
    savings = _steps(income * rng.gamma(0.7, 0.35, num_rows), 50)
    amount = np.maximum(_steps(income * rng.gamma(2.2, 0.22, num_rows), 500), 1_000)
    term = rng.choice(TERMS, num_rows, p=[0.10, 0.22, 0.32, 0.20, 0.16])
    open_loans = rng.poisson(1.3, num_rows)
    late_payments = rng.poisson(0.35 + 0.35 * open_loans, num_rows)
    housing = rng.choice(3, num_rows, p=[0.46, 0.33, 0.21])
    purpose = rng.choice(5, num_rows, p=[0.33, 0.22, 0.18, 0.15, 0.12])
    burden = amount / term / (income / 12)
    score = (
        1.1
        - 7.0 * burden
        + 0.55 * np.log1p(savings / 1_000)
        + 0.05 * years_employed
        + 0.30 * education
        - 0.50 * open_loans
        - 0.85 * late_payments
        + np.array([-0.4, 0.2, 0.6])[housing]
        + np.array([0.0, 0.3, -0.2, 0.1, -0.4])[purpose]
        + rng.logistic(0, 0.45, num_rows)
    )
    return pa.table(
        {
            "application_id": np.arange(first_id, first_id + num_rows),
            "age": age,
            "gender": _labels(gender, ["female", "male"]),
            "region": _labels(region, ["north", "south", "east", "west"]),
            "education": _labels(education, EDUCATION),
            "years_employed": years_employed,
            "income": income,
            "savings": savings,
            "housing": _labels(housing, ["rent", "mortgage", "own"]),
            "open_loans": open_loans,
            "late_payments": late_payments,
            "purpose": _labels(purpose, ["car", "home", "debt", "study", "travel"]),
            "amount": amount,
            "term_months": term,
            "decision": _labels((score > 0).astype(int), ["refused", "approved"]),
        }
    )


def _steps(values: npt.NDArray, step: int) -> npt.NDArray[np.int64]:
    return (np.rint(values / step) * step).astype(np.int64)


def _labels(codes: npt.NDArray, labels: list[str]) -> pa.Array:
    return pa.array(labels).take(pa.array(codes))


def cancer_table() -> pa.Table:
    """Breast cancer Wisconsin (diagnostic), as scikit-learn ships it: 569 rows, 30 measurements."""
    from sklearn.datasets import load_breast_cancer  # slow to import, and only needed here

    data = load_breast_cancer()
    columns = {name.replace(" ", "_"): data.data[:, i] for i, name in enumerate(data.feature_names)}
    return pa.table({**columns, "diagnosis": _labels(data.target, ["malignant", "benign"])})
