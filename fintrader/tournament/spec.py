"""Records of a pod: its spec, its result, and the reasons why it may fail."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Self, TypeAlias

from fintrader import records
from fintrader.agents.settings import Budget
from fintrader.errors import RunError, TournamentError
from fintrader.files import find_seal, read_bytes, seal, unseal
from fintrader.records import JsonValue, RecordError
from fintrader.tournament.settings import Metric

_Loss = Literal["killed", "rank", "node", "drained", "hung", "oom"]
_Error = Literal["nan", "disk_full", "storage", "snapshot", "error", "fenced"]
Reason = Literal["", _Loss, _Error]
Origin = Literal["fresh", "exploit", "survivor"]
SettingsValues: TypeAlias = Mapping[str, JsonValue]
"""Complete settings as plain values, validated by their model where they are used."""


def other_version(path: Path, error: RecordError) -> RunError:
    """Build the error for a run's file with an intact seal and the fields of another version."""
    return RunError(
        f"{path} is of another version ({error}); go on with the version of fintrader that the"
        " run's manifest.json names, or choose another --name"
    )


class _SealedRecord:
    """Base of records that are stored in one sealed JSON file each."""

    def to_json(self) -> str:
        """Return the file's text. Equal records give equal texts."""
        return seal(records.to_json(self), indent=2).decode()

    @classmethod
    def from_json(cls, path: Path) -> Self:
        """Read a file. Raises TournamentError when it is missing, damaged or another record, and
        RunError when another version wrote it, so that nothing replaces it as damaged."""
        remedy = cls._describe_remedy(path)
        damaged = TournamentError(f"{path} is damaged: {remedy}")
        try:
            values = unseal(read_bytes(path), damaged)
            return records.from_json(cls, values)
        except FileNotFoundError:
            raise TournamentError(f"{path} does not exist: {remedy}") from None
        except RecordError as error:
            if not records.resembles(cls, values):
                raise damaged from None
            raise other_version(path, error) from None
        except OSError as error:
            raise TournamentError(f"{path} cannot be read ({error.strerror}): {remedy}") from None

    @staticmethod
    def _describe_remedy(path: Path) -> str:
        return (
            f"`fintrader verify {path.parents[2]} --repair` rebuilds it if possible, else sets it"
            " aside"
        )


@dataclass(frozen=True)
class EvaluationTerms:
    """The score of a pod: a metric and its windows."""

    metric: Metric = "sharpe"
    windows: int = 1
    """Number of equal, separately scored parts of the sessions."""


@dataclass(frozen=True)
class Rival:
    """A pod whose policy plays a team of traders and does not learn."""

    pod: str
    snapshot: str
    """SHA-256 of its snapshot."""
    agent: SettingsValues


@dataclass(frozen=True, kw_only=True)
class PodSpec(_SealedRecord):
    """Description of a pod's training: a pure function of the root seed, the pod's number and the
    results before it."""

    pod: str
    """Identifier, `p0007`."""
    index: int
    seed: int
    origin: Origin
    parent: str | None = None
    """Pod whose networks and optimiser it starts from; `run:pod` for one of an earlier run."""
    snapshot: str | None = None
    """SHA-256 of the parent's snapshot."""
    seen: int = 0
    """Results that had been applied to the leaderboard when this spec was made."""
    generation: int = 0
    """Number of the generation or rung; with another `order`, distance from the founders."""
    rung: int = 0
    """Rung of halving. Pods of a higher rung rank before those of lower rungs, whose scores come
    from shorter training and are the best of many."""
    agent: SettingsValues
    hyper: SettingsValues = field(default_factory=dict)
    """The searched settings of the agent, by dotted name."""
    env: SettingsValues = field(default_factory=dict)
    budget: Budget
    evaluation: EvaluationTerms = EvaluationTerms()
    looks: tuple[float, ...] = ()
    """Shares of the budget, before its end, at which the pod is scored; it publishes the state with
    the best score. Empty: it publishes the last state."""
    folds: int = 0
    """Learners of K-fold validation, each scored on an unseen block; 0: one, on the validation
    window."""
    replicas: int = 1
    """Learners that are fused (learner fusion); one is plain training."""
    fusions: int = 8
    """Number of times that the replicas are averaged."""
    data_hash: str = ""
    rivals: tuple[Rival, ...] = ()
    """A player for each team but the first; empty: the pod's own policy plays all teams."""

    @property
    def is_classic(self) -> bool:
        """True in an environment that is no market."""
        return self.env.get("kind") == "gymnasium"

    @property
    def sources(self) -> tuple[str, ...]:
        """Pods of the same run whose snapshots this pod reads: parent and rivals."""
        rivals = tuple(one.pod for one in self.rivals)
        return (self.parent, *rivals) if self.parent and ":" not in self.parent else rivals

    @property
    def digest(self) -> str:
        """The seal of the record, by which a result names its spec."""
        return find_seal(self.to_json().encode())


@dataclass(frozen=True, kw_only=True)
class PodResult(_SealedRecord):
    """Outcome of a pod, written last. The function that trains fills in its results, and the module
    `pod` the rest."""

    pod: str
    epoch: int = 0
    """Index of a submission, from 0; the updater identifies a result by (pod, epoch)."""
    status: Literal["done", "failed"]
    reason: Reason = ""
    detail: str = ""
    spec: str = ""
    """Digest of the spec that the result belongs to."""
    score: float | None = None
    """Score that the leaderboard sorts by; None: no row."""
    window_scores: tuple[float | None, ...] = ()
    rung_scores: dict[str, float | None] = field(default_factory=dict)
    """Scores before the end, by budget share."""
    looks: int = 1
    """Number of evaluations on the validation window that chose the published state."""
    chosen_at: float = 1.0
    """Share of the budget that the published state was trained for."""
    metrics: dict[str, float | None] = field(default_factory=dict)
    """All of the validation window's metrics."""
    returns: tuple[float, ...] = ()
    """Daily returns on the validation window, or out of fold."""
    active_returns: tuple[float, ...] = ()
    """Daily returns less those of the benchmark portfolio (`env.benchmark`), at costs."""
    benchmark_score: float | None = None
    """Score of the benchmark portfolio on the same sessions."""
    snapshot: str | None = None
    policy: str | None = None
    """SHA-256 of the pod's `policy.safetensors`."""
    env_steps: int = 0
    """Steps trained by this pod alone."""
    updates: int = 0
    started: float = 0.0
    finished: float = 0.0
    seconds: float = 0.0
    """Training and evaluation, resumed parts included where the function that trains knows them; 0:
    the module `pod` measures the time."""
    device: str = ""
    location: str = ""
    """Machine and device that trained the pod (`process.describe_location`)."""
    attempts: int = 1

    @property
    def reproducible(self) -> PodResult:
        """The result without its times and machines, which no seed determines."""
        return replace(
            self, started=0.0, finished=0.0, seconds=0.0, device="", location="", attempts=1
        )


@dataclass(frozen=True, kw_only=True)
class TrainedPod(PodResult):
    """A pod that is trained and stored but has no score yet: an evaluator elsewhere completes
    it."""

    evaluate: str
    """`package.module:function` of the evaluator; it takes the spec, a context and this record."""

    def add_evaluation(self, **scored: Any) -> PodResult:
        """Complete the result with the fields that an evaluation makes."""
        values = {**vars(self), **scored}
        del values["evaluate"]
        return PodResult(**values)


@dataclass(frozen=True)
class TournamentIdentity(_SealedRecord):
    """Inputs on which every pod of a tournament depends: `tournament.json`."""

    settings: SettingsValues
    """Settings of the tournament, without those that a resumed one may change."""
    agents: tuple[SettingsValues, ...]
    env: SettingsValues
    seed: int
    data_hash: str
    inherited: dict[str, str]
    """Pods of an earlier run, as `run:pod`, and the SHA-256 of their snapshots."""

    @staticmethod
    def _describe_remedy(path: Path) -> str:
        return (
            "run the command in its manifest again, which rebuilds it if the pods match its"
            " settings"
        )


class Fenced(TournamentError):
    """Another orchestrator has taken over; this process may no longer publish the pod's result."""

    reason = "fenced"


class WorkLost(TournamentError):
    """A pod's work failed in another process, for this `reason`."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


class RankLost(WorkLost):
    """One process of a pod that spans devices failed."""


class OrphanLost(WorkLost):
    """A pod failed while no orchestrator listened; its next orchestrator reports it."""
