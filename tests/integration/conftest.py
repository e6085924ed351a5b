"""One local Ray for all tests in here, and one trained model."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ray_cfnet.cluster.session import ray_session
from ray_cfnet.commands import run_train
from ray_cfnet.config import Config
from ray_cfnet.config.file import load_config

CONF = Path(__file__).parent.parent.parent / "conf"


@pytest.fixture(scope="session", autouse=True)
def local_ray() -> Iterator[None]:
    with ray_session(min_cpus=3):
        yield


def loans_config(directory: Path, *overrides: str) -> Config:
    """The demo's configuration on a small table below `directory`."""
    return load_config(
        CONF / "loans.yaml",
        [
            f"table.path={directory}/loans",
            f"output.path={directory}/out",
            "table.sample.rows=4000",
            "training.epochs=20",
            "training.batch_size=64",
            "cluster.num_actors=1",  # an actor's start costs more than its work here
            *overrides,
        ],
    )


@dataclass
class Trained:
    config: Config
    result: dict[str, Any]

    @property
    def bundle(self) -> str:
        return str(self.result["bundle"])


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    config = loans_config(tmp_path_factory.mktemp("trained"))
    return Trained(config, run_train(config, on_epoch=lambda metrics: None))
