"""The configuration: one YAML file is one `Config`. Reading it from a file is in configfile.py."""

from collections.abc import Iterator
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_core import ErrorDetails, InitErrorDetails, PydanticCustomError

Label = bool | int | str
"""A class or a category, in the type its column has."""

Fraction = Annotated[float, Field(gt=0, lt=1)]
Width = Annotated[int, Field(ge=1)]
Positive = Annotated[int, Field(ge=1)]


def _fault(message: str) -> PydanticCustomError:
    # The message goes in as context: braces in a user's value must not be read as a template.
    return PydanticCustomError("fault", "{message}", {"message": message})


def _raised_again(details: ErrorDetails) -> InitErrorDetails:
    kind = _fault(details["ctx"]["message"]) if details["type"] == "fault" else details["type"]
    again = InitErrorDetails(type=kind, loc=details["loc"], input=details["input"])
    return {**again, "ctx": details["ctx"]} if "ctx" in details and kind == details["type"] else again


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @classmethod
    def _faults_between(cls, data: dict[str, Any]) -> Iterator[tuple[str, str]]:  # noqa: ARG003
        """(key, fault) where keys contradict each other. The data is as written, nothing of it checked yet."""
        yield from ()

    @model_validator(mode="wrap")
    @classmethod
    def _every_fault(cls, data: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        """Pydantic checks keys together only once each is right; here one fault must not hide another."""
        faults: list[InitErrorDetails] = []
        checked = None
        try:
            checked = handler(data)
        except ValidationError as error:
            faults += [_raised_again(details) for details in error.errors()]
        if isinstance(data, dict):
            for key, message in cls._faults_between(data):
                faults.append(InitErrorDetails(type=_fault(message), loc=(key,), input=data.get(key)))
        if faults or checked is None:
            raise ValidationError.from_exception_data(cls.__name__, faults)
        return checked


class ContinuousFeature(_Section):
    """A number. Integers stay integers; other columns keep the decimals seen in training."""

    kind: Literal["continuous"]
    step: float | None = Field(
        default=None, gt=0, description="changed values are multiples of this; default: 1 for integers"
    )
    direction: Literal["any", "increase", "decrease"] = "any"
    bounds: tuple[float | None, float | None] | None = Field(
        default=None, description="[lower, upper]; null leaves a side open; rows outside are rejected"
    )
    immutable: bool = False

    @field_validator("bounds")
    @classmethod
    def _ordered(cls, bounds: tuple[float | None, float | None] | None) -> Any:
        if bounds is not None:
            lower, upper = bounds
            if lower is not None and upper is not None and lower > upper:
                raise _fault(f"lower {lower:g} > upper {upper:g}")
        return bounds


class CategoricalFeature(_Section):
    """One of a set of values, learned from the training split, or listed in `order`."""

    kind: Literal["categorical"]
    order: list[Label] | None = Field(default=None, description="every category, from lowest to highest")
    direction: Literal["any", "increase", "decrease"] = "any"
    immutable: bool = False

    @field_validator("order")
    @classmethod
    def _distinct(cls, order: list[Label] | None) -> list[Label] | None:
        if order is not None:
            if len(order) < 2:
                raise _fault("an order needs at least two categories")
            twice = sorted({str(value) for value in order if order.count(value) > 1})
            if twice:
                raise _fault(f"listed twice: {', '.join(twice)}")
        return order

    @classmethod
    def _faults_between(cls, data: dict[str, Any]) -> Iterator[tuple[str, str]]:
        if data.get("direction") in ("increase", "decrease") and not data.get("order"):
            yield "direction", f"{data['direction']} needs an order that lists the categories from low to high"


Feature = Annotated[ContinuousFeature | CategoricalFeature, Field(discriminator="kind")]


class Sample(_Section):
    """A table that ray-cfnet makes by itself, written to `table.path` when nothing is there yet."""

    name: Literal["loans", "cancer"]
    rows: int = Field(default=40_000, ge=100, description="for loans; cancer always has its 569 rows")
    seed: int = Field(default=0, ge=0, lt=2**31)


class Table(_Section):
    """The table: where it is, what is predicted, and what a person can change."""

    path: str = Field(description="a Parquet file, a directory or a hive-partitioned tree; local or s3://")
    name: str | None = Field(default=None, description="which table this is; evaluate --against paper looks it up")
    target: str = Field(description="the column to predict: 0/1, booleans, strings or integers")
    target_probability: bool = Field(
        default=False, description="the target is another model's probability of class 1 (black-box mode)"
    )
    keys: list[str] = Field(default=[], description="columns that identify a row, passed through")
    features: dict[str, Feature] = Field(min_length=1)
    sample: Sample | None = None

    @classmethod
    def _faults_between(cls, data: dict[str, Any]) -> Iterator[tuple[str, str]]:
        target = data.get("target")
        for role, kind in (("features", dict), ("keys", list)):
            if isinstance(data.get(role), kind) and isinstance(target, str) and target in data[role]:
                yield "target", f"{target!r} is also listed under {role}; remove one"


class Split(_Section):
    """Which rows train, choose the best epoch, and test."""

    method: Literal["sequential", "random"] = "sequential"
    train: Fraction = 0.7
    validation: Fraction = 0.1
    test: Fraction = 0.2
    seed: int = Field(default=0, ge=0, lt=2**31)

    @classmethod
    def _faults_between(cls, data: dict[str, Any]) -> Iterator[tuple[str, str]]:
        parts = [data.get(name, cls.model_fields[name].default) for name in ("train", "validation", "test")]
        if all(isinstance(part, int | float) for part in parts) and abs(sum(parts) - 1) > 1e-6:
            yield "train", f"train + validation + test is {sum(parts):g}, not 1"


class Model(_Section):
    """Hidden layer widths; input and output widths follow from the table."""

    encoder: list[Width] = Field(default=[50, 10], min_length=1)
    predictor: list[Width] = Field(default=[10], min_length=1)
    generator: list[Width] = Field(default=[50], min_length=1)
    dropout: float = Field(default=0.3, ge=0, lt=1, description="after every hidden layer of h and f")
    generator_dropout: float = Field(default=0.0, ge=0, lt=1, description="of g; the paper's is that of h and f")
    separate: bool = Field(
        default=False, description="ablation Separate: g has an encoder of its own and sees the row alone, no p"
    )
    pass_prediction: bool = Field(default=True, description="false: ablation NoPass-p_x, g sees z alone")
    block: Literal["linear", "conv"] = Field(default="linear", description="conv: ablation Conv")


class Selection(_Section):
    """The best epoch has the largest validity * v + accuracy * a - proximity * p on the validation split.

    v is the validity of the worse of cf and fcf, up to 0.998. Kept is the latest epoch within `tolerance` of it.
    """

    validity: float = Field(default=10.0, ge=0)
    accuracy: float = Field(default=2.0, ge=0)
    proximity: float = Field(default=1.0, ge=0)
    tolerance: float = Field(default=0.05, ge=0)


class Training(_Section):
    """The two-stage update (paper, section 3.3 and appendix B.4) and its ablations."""

    epochs: int = Field(default=100, ge=1)
    batch_size: int = Field(default=128, ge=1, description="rows per step, over all workers")
    learning_rate: float = Field(default=0.003, gt=0)
    schedule: Literal["cosine", "constant"] = Field(
        default="cosine", description="cosine lets the learning rate fall to 1 % by the last step"
    )
    lambda_pred: float = Field(default=1.0, gt=0, description="weight of the prediction loss L1")
    lambda_valid: float = Field(default=0.2, ge=0, description="weight of the validity loss L2")
    lambda_prox: float = Field(default=0.1, ge=0, description="weight of the proximity loss L3")
    grad_clip: float = Field(default=0.5, gt=0)
    max_reject_fraction: float = Field(
        default=0.0, ge=0, lt=1, description="share of training rows with null or NaN that may be left out"
    )
    label_smoothing: bool = Field(default=True, description="pull hard targets 0.03 away from 0 and 1")
    validity_target: Literal["hard", "soft"] = Field(
        default="hard", description="L2 pulls towards the flipped class (hard) or 1 - f(x) (soft)"
    )
    loss: Literal["mse", "bce"] = Field(default="mse", description="L1 and L2; bce: cross entropy, ablation BCE")
    proximity_loss: Literal["mse", "l1"] = Field(default="mse", description="L3; l1: ablation l1")
    update: Literal["two_stage", "single", "posthoc"] = Field(
        default="two_stage",
        description="single: one step on all three losses (SingleBP); posthoc: h and f first, then g (Posthoc)",
    )
    freeze: bool = Field(default=True, description="false: stage 2 moves h and f too, ablation NoFreeze")
    selection: Selection = Selection()
    patience: int | None = Field(
        default=None, ge=1, description="stop when the best epoch is this many epochs old; null: never"
    )
    ingest: Literal["auto", "memory", "stream"] = Field(
        default="auto", description="keep encoded rows in the workers' memory, or stream them every epoch"
    )
    max_failures: int = Field(default=3, ge=0, description="lost workers or nodes to survive before giving up")
    seed: int = Field(default=0, ge=0, lt=2**31)

    @classmethod
    def _faults_between(cls, data: dict[str, Any]) -> Iterator[tuple[str, str]]:
        if data.get("update") == "posthoc" and data.get("freeze") is False:
            yield "freeze", "false contradicts update: posthoc, which explains a finished predictor; remove one"
        if data.get("update") == "posthoc" and data.get("patience") is not None:
            yield "patience", "would end update: posthoc before its generator is trained; remove one"


class Cluster(_Section):
    """How much of the Ray cluster to use."""

    num_workers: int = Field(default=1, ge=1, description="Ray Train workers")
    max_workers: int | None = Field(
        default=None,
        ge=1,
        description="as many workers as the cluster has room for, from num_workers up to this; null: num_workers. "
        "The model depends on how many there were",
    )
    use_gpu: bool = False
    num_actors: Literal["auto"] | Positive | Annotated[list[Positive], Field(min_length=2, max_length=2)] = Field(
        default="auto",
        description="Ray Data actors that explain: auto (as many as the cluster has room for), N, or [least, most]",
    )
    actor_cpus: float = Field(default=1.0, gt=0, description="CPUs of an actor; it computes with as many threads")
    actor_gpus: float = Field(default=0.0, ge=0, description="GPUs of an actor; 0.25 lets four share one")

    @classmethod
    def _faults_between(cls, data: dict[str, Any]) -> Iterator[tuple[str, str]]:
        actors = data.get("num_actors")
        if isinstance(actors, list) and all(isinstance(n, int) for n in actors) and actors != sorted(actors):
            yield "num_actors", f"{actors} is no range from least to most"
        fewest, most = data.get("num_workers", 1), data.get("max_workers")
        if isinstance(fewest, int) and isinstance(most, int) and most < fewest:
            yield "max_workers", f"{most} is less than num_workers ({fewest})"


class Explain(_Section):
    """What to explain and how the work is cut."""

    desired: Label = Field(default="opposite", description="opposite, or the class every row should reach")
    refine: Literal["sparse", "none"] = Field(
        default="none", description="sparse: feasible counterfactuals lose every change that is not needed"
    )
    margin: float = Field(
        default=0.0, ge=0, lt=0.5, description="refining keeps the desired class this far above its threshold"
    )
    unit_rows: int = Field(default=500_000, ge=1, description="rows per work unit, about")
    max_reject_fraction: float = Field(
        default=0.05, ge=0, le=1, description="a run with a larger share of rejected rows fails, after it wrote all"
    )
    retries: int = Field(default=3, ge=0, description="further attempts at a unit that cannot be read or written")


class Evaluate(_Section):
    """What `evaluate` measures beside accuracy and counterfactuals."""

    second_order_threshold: float = Field(
        default=2.0, ge=0, description="second order takes back number changes up to this size, in the column's unit"
    )
    epsilons: list[Annotated[float, Field(ge=0)]] = Field(
        default=[0.0, 0.01, 0.03, 0.05, 0.1, 0.2],
        min_length=1,
        description="sizes of the attacks on the predictor, in encoded units (a number's training range is 1)",
    )
    robustness_rows: int = Field(default=5_000, ge=1, description="rows attacked at most, spread over the table")


class Output(_Section):
    """Where results go: bundles for train, the explained table for explain."""

    path: str = "out/"
    format: Literal["parquet", "delta"] = Field(
        default="parquet", description="delta: one Delta Lake commit a run, for readers that look during a write"
    )


class Tolerance(_Section):
    """How much worse than the current bundle's a figure may be; null: not compared."""

    accuracy: float | None = Field(default=0.005, ge=0)
    validity: float | None = Field(default=0.002, ge=0, description="of cf and of fcf")
    proximity: float | None = Field(default=0.01, ge=0, description="of cf and of fcf")


class Promotion(_Section):
    """What a bundle's test metrics must be for `ray-cfnet promote` to take it into use; null: no limit."""

    min_accuracy: float | None = Field(default=None, ge=0, le=1)
    min_validity: float | None = Field(default=None, ge=0, le=1, description="of the generated cf")
    min_fcf_validity: float | None = Field(default=None, ge=0, le=1, description="of the feasible fcf")
    max_proximity: float | None = Field(default=None, ge=0, description="of the generated cf")
    max_violations: int | None = Field(default=0, ge=0, description="fcf rows that break a declared rule")
    tolerance: Tolerance = Tolerance()


class Nightly(_Section):
    """When `ray-cfnet nightly` says that a training is due, and whether it trains by itself."""

    partition: str = Field(default="ds", description="the partition column that --since and --until speak of")
    max_model_age_days: float | None = Field(
        default=90.0, gt=0, description="since the bundle was first promoted; null: no limit"
    )
    max_drift: float | None = Field(
        default=0.1,
        gt=0,
        le=1,
        description="share of rows whose predicted class may move between the newest partitions and the bundle's "
        "earlier ones; null: no limit",
    )
    window: int = Field(default=7, ge=1, description="how many of the newest partitions drift and quality look at")
    min_labelled_rows: int = Field(default=1_000, ge=1, description="fewer labels than this prove nothing")
    retrain: bool = Field(default=False, description="train when it is due, and promote through the usual conditions")
    retrain_wait_days: float = Field(
        default=7.0, ge=0, description="after a promotion or a refusal, so long without another training"
    )


class Config(_Section):
    """Everything one run needs to know."""

    table: Table
    split: Split = Split()
    model: Model = Model()
    training: Training = Training()
    cluster: Cluster = Cluster()
    explain: Explain = Explain()
    evaluate: Evaluate = Evaluate()
    output: Output = Output()
    promotion: Promotion = Promotion()
    nightly: Nightly = Nightly()
