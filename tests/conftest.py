"""What all tests share: one torch thread, and where the real tables are."""

import os
from pathlib import Path

import pytest
import torch

# Small nets on a shared machine: a second thread costs more than it gives.
torch.set_num_threads(1)

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The directory with the paper's tables; skips the test where there is none."""
    named = os.environ.get("RAY_CFNET_DATA")
    directory = Path(named) if named else ROOT.parent / "shared" / "data"
    if not (directory / "adult.parquet").exists():
        pytest.skip(f"no real tables: {directory}/adult.parquet is not there; set RAY_CFNET_DATA to their directory")
    return directory
