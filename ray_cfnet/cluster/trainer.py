"""Ray's trainer without the helpers that have nothing to do here."""

from ray.train.torch import TorchTrainer
from ray.train.v2._internal.callbacks.datasets import DatasetsCallback
from ray.train.v2._internal.callbacks.placement_group_callback import PlacementGroupCleanerCallback
from ray.train.v2._internal.execution.callback import RayTrainCallback

from ray_cfnet.cluster.session import is_alone


class LeanTrainer(TorchTrainer):
    """A helper is a process that wakes a hundred times a second, on cores that train.

    One hands out shards of the trainer's `datasets`: our workers fetch their own. Another removes what a killed
    controller leaves behind on a cluster: a Ray of this process alone leaves nothing.
    """

    def _create_default_callbacks(self) -> list[RayTrainCallback]:
        needless = (DatasetsCallback, PlacementGroupCleanerCallback) if is_alone() else (DatasetsCallback,)
        callbacks = super()._create_default_callbacks()  # type: ignore[misc]  # Ray's own, in V2 only
        return [callback for callback in callbacks if not isinstance(callback, needless)]
