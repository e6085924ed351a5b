"""The configuration: one YAML file is one `Config`. Reading it from a file is in file.py."""

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Field

from ray_cfnet.config.features import CategoricalFeature as CategoricalFeature
from ray_cfnet.config.features import ContinuousFeature as ContinuousFeature
from ray_cfnet.config.features import Feature, rule_faults
from ray_cfnet.config.ruletext import Relation, parse_relation
from ray_cfnet.config.section import Fault, Section
from ray_cfnet.config.section import Label as Label
from ray_cfnet.config.words import FEATURE_WORDS, label_text
from ray_cfnet.config.words import Words as Words

Fraction = Annotated[float, Field(gt=0, lt=1)]
Width = Annotated[int, Field(ge=1)]
Positive = Annotated[int, Field(ge=1)]


class Sample(Section):
    """A table that ray-cfnet makes by itself, written to `table.path` when nothing is there yet."""

    name: Literal["loans", "cancer"]
    rows: int = Field(default=40_000, ge=100, description="for loans; cancer always has its 569 rows")
    seed: int = Field(default=0, ge=0, lt=2**31)


class Table(Section):
    """The table: where it is, what is predicted, and what a person can change."""

    path: str = Field(description="a Parquet file, a directory or a hive-partitioned tree; local or s3://")
    name: str | None = Field(default=None, description="which table this is; evaluate --against paper looks it up")
    target: str = Field(description="the column to predict: 0/1, booleans, strings or integers")
    target_probability: bool = Field(
        default=False, description="the target is another model's probability of class 1 (black-box mode)"
    )
    keys: list[str] = Field(default=[], description="columns that identify a row, passed through")
    features: dict[str, Feature] = Field(min_length=1)
    rules: list[str] = Field(
        default=[], description="between features: `a <= b` of numbers, or `if a changes then b changes`"
    )
    sample: Sample | None = None

    @property
    def relations(self) -> list[Relation]:
        return [parse_relation(rule, self.features) for rule in self.rules]

    @classmethod
    def _faults_between(cls, data: dict[str, Any]) -> Iterator[Fault]:
        target = data.get("target")
        for role, kind in (("features", dict), ("keys", list)):
            if isinstance(data.get(role), kind) and isinstance(target, str) and target in data[role]:
                yield "target", f"{target!r} is also listed under {role}; remove one"
        rules, features = data.get("rules"), data.get("features")
        if isinstance(rules, list) and isinstance(features, dict):
            yield from rule_faults(rules, features)


class Split(Section):
    """Which rows train, choose the best epoch, and test."""

    method: Literal["sequential", "random"] = "sequential"
    train: Fraction = 0.7
    validation: Fraction = 0.1
    test: Fraction = 0.2
    seed: int = Field(default=0, ge=0, lt=2**31)

    @classmethod
    def _faults_between(cls, data: dict[str, Any]) -> Iterator[Fault]:
        parts = [data.get(name, cls.model_fields[name].default) for name in ("train", "validation", "test")]
        if all(isinstance(part, int | float) for part in parts) and abs(sum(parts) - 1) > 1e-6:
            yield "train", f"train + validation + test is {sum(parts):g}, not 1"


class Model(Section):
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
    generator_kind: Literal["plain", "gated"] = Field(
        default="plain",
        description="plain: the paper's g; gated: it sees row and class too, and decides which features to change",
    )

    @classmethod
    def _faults_between(cls, data: dict[str, Any]) -> Iterator[tuple[str, str]]:
        if data.get("generator_kind") == "gated" and data.get("block") == "conv":
            yield "generator_kind", "gated needs block: linear"


class Selection(Section):
    """The best epoch has the largest validity * v + accuracy * a - proximity * p on the validation split.

    v is the validity of the worse of cf and fcf, up to 0.998. Kept is the latest epoch within `tolerance` of it.
    """

    validity: float = Field(default=10.0, ge=0)
    accuracy: float = Field(default=2.0, ge=0)
    proximity: float = Field(default=1.0, ge=0)
    tolerance: float = Field(default=0.05, ge=0)


class Training(Section):
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
    def _faults_between(cls, data: dict[str, Any]) -> Iterator[Fault]:
        if data.get("update") == "posthoc" and data.get("freeze") is False:
            yield "freeze", "false contradicts update: posthoc, which explains a finished predictor; remove one"
        if data.get("update") == "posthoc" and data.get("patience") is not None:
            yield "patience", "would end update: posthoc before its generator is trained; remove one"


class Cluster(Section):
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
    def _faults_between(cls, data: dict[str, Any]) -> Iterator[Fault]:
        actors = data.get("num_actors")
        if isinstance(actors, list) and all(isinstance(n, int) for n in actors) and actors != sorted(actors):
            yield "num_actors", f"{actors} is no range from least to most"
        fewest, most = data.get("num_workers", 1), data.get("max_workers")
        if isinstance(fewest, int) and isinstance(most, int) and most < fewest:
            yield "max_workers", f"{most} is less than num_workers ({fewest})"


class Explain(Section):
    """What to explain and how the work is cut."""

    desired: Label = Field(default="opposite", description="opposite, or the class every row should reach")
    only: str = Field(
        default="all",
        description="all, or pred_label=CLASS: only rows with this prediction; the others are passed through with it",
    )
    refine: Literal["sparse", "none"] = Field(
        default="sparse",
        description="sparse: a feasible counterfactual changes no more than it needs; none: as projected",
    )
    margin: float = Field(
        default=0.0, ge=0, lt=0.5, description="search and refining keep the desired class this far above its threshold"
    )
    plausibility: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="refining avoids combinations of values that are rarer than this share of the training rows",
    )
    repair: bool = Field(
        default=True,
        description="search on where the network's own counterfactual fails within the rules",
    )
    num_options: int = Field(
        default=1, ge=1, le=5, description="feasible counterfactuals per row that change different features"
    )
    unit_rows: int = Field(default=500_000, ge=1, description="rows per work unit, about")
    max_reject_fraction: float = Field(
        default=0.05, ge=0, le=1, description="a run with a larger share of rejected rows fails, after it wrote all"
    )
    retries: int = Field(default=3, ge=0, description="further attempts at a unit that cannot be read or written")
    words: bool = Field(
        default=True, description="reason_1 to reason_4 and a sentence for every row; false leaves these columns null"
    )

    @classmethod
    def _faults_between(cls, data: dict[str, Any]) -> Iterator[Fault]:
        desired = data.get("desired", "opposite")
        if desired != "opposite" and data.get("only") == f"pred_label={label_text(desired)}":
            yield "only", "chooses the rows that are as desired already; name another class"


class Evaluate(Section):
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


class Output(Section):
    """Where results go: bundles for train, the explained table for explain."""

    path: str = "out/"
    format: Literal["parquet", "delta"] = Field(
        default="parquet", description="delta: one Delta Lake commit a run, for readers that look during a write"
    )


class Tolerance(Section):
    """How much worse than the current bundle's a figure may be; null: not compared."""

    accuracy: float | None = Field(default=0.005, ge=0)
    validity: float | None = Field(default=0.002, ge=0, description="of cf and of fcf")
    proximity: float | None = Field(default=0.01, ge=0, description="of cf and of fcf")


class Promotion(Section):
    """What a bundle's test metrics must be for `ray-cfnet promote` to take it into use; null: no limit."""

    min_accuracy: float | None = Field(default=None, ge=0, le=1)
    min_validity: float | None = Field(default=None, ge=0, le=1, description="of the generated cf")
    min_fcf_validity: float | None = Field(default=None, ge=0, le=1, description="of the feasible fcf")
    max_proximity: float | None = Field(default=None, ge=0, description="of the generated cf")
    max_violations: int | None = Field(default=0, ge=0, description="fcf rows that break a declared rule")
    tolerance: Tolerance = Tolerance()


class Nightly(Section):
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


class Config(Section):
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
    words: Words = Words()

    @classmethod
    def _faults_between(cls, data: dict[str, Any]) -> Iterator[tuple[tuple[str, ...], str]]:
        table, words = data.get("table"), data.get("words")
        declared = table.get("features") if isinstance(table, dict) else None
        said = words.get("features") if isinstance(words, dict) else None
        if not isinstance(declared, dict) or not isinstance(said, dict):
            return
        for name, texts in said.items():
            place = ("words", "features", name)
            if name not in declared:
                yield place, f"no such feature; the table has {', '.join(map(str, declared))}"
            elif isinstance(declared[name], dict) and isinstance(texts, dict):
                kind = declared[name].get("kind")
                for key in texts:
                    if FEATURE_WORDS.get(key, kind) != kind:
                        yield (*place, key), f"is for {FEATURE_WORDS[key]} features, {name} is {kind}"
