"""The job that makes the tables of quality: what it trains, and what it takes as done."""

from pathlib import Path

import pytest

from jobs.reproduce import DATASETS, VARIANTS, configured, is_done


@pytest.mark.parametrize("dataset", DATASETS)
def test_every_variant_is_a_configuration_of_its_own(dataset: str) -> None:
    made = [configured(dataset, variant, 0, Path("data"), Path("work"), None) for variant in VARIANTS]
    settings = {(config.model.model_dump_json(), config.training.model_dump_json()) for config in made}
    ships_the_papers_generator = made[0].model == made[1].model and made[0].training == made[1].training
    assert len(settings) == len(VARIANTS) - ships_the_papers_generator


def test_a_run_with_other_epochs_is_another_run() -> None:
    runs = [{"dataset": "cancer", "variant": "plain", "seed": 0, "epochs": 3}]
    asked = {epochs: configured("cancer", "plain", 0, None, Path("work"), epochs) for epochs in (None, 3)}
    assert is_done(runs, "cancer", "plain", asked[3])
    assert not is_done(runs, "cancer", "plain", asked[None])
    assert not is_done(runs, "cancer", "default", asked[3])
