"""`RunConfig`: all settings of a run, from YAML and the command line."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    Discriminator,
    Field,
    SerializeAsAny,
    Tag,
    field_validator,
    model_validator,
)

from fintrader.agents.settings import PPO, AgentSettings
from fintrader.backtesting.settings import WalkForwardSettings
from fintrader.config import (
    REFERENCE,
    PathText,
    Settings,
    compare_values,
    load_object,
    merge_values,
    name_code,
    refuse_own,
    validate,
    validate_below,
)
from fintrader.envs.settings import EnvSettings, GymnasiumSettings, TradingSettings
from fintrader.errors import ConfigError
from fintrader.market.data_config import (
    DATA_CHOICES,
    Choices,
    DataConfig,
    choose,
    map_union,
    read_values,
)
from fintrader.seams import LAUNCHERS, load_part
from fintrader.tournament.launchers import LauncherFactory
from fintrader.tournament.settings import LauncherSettings, OperationsSettings, TournamentSettings

Window = Literal["train", "validation", "test"]
_DEVICE = re.compile(r"auto|cpu|cuda(:\d+)?")


OneOrSeveralAgents = Annotated[
    Annotated[AgentSettings, Tag("one")]
    | Annotated[tuple[AgentSettings, ...], Field(min_length=1), Tag("several")],
    Discriminator(lambda value: "several" if isinstance(value, list | tuple) else "one"),
]


def launcher_models() -> dict[str, type[LauncherSettings]]:
    """Load the model of each launcher's settings."""
    own = {name: load_object(part.settings) for name, part in LAUNCHERS.items()}
    return {"local": LauncherSettings, **own, REFERENCE: LauncherSettings}


class BacktestSettings(Settings):
    """Windows and controls of the backtest. Its costs are those of `env`."""

    window: tuple[Window, ...] = Field(("test",), min_length=1)
    """Windows of the market to trade, each into a separate folder. No earlier stage reads the
    test window."""
    null_model: bool = True
    """Repeat the whole search on features that hold no information (doubles the time; tells luck
    from skill)."""
    sensitivity: bool = True
    """Also vary costs, fills, delays and starts, and leave out each stock in turn."""
    tear_sheet: Literal["auto", "png", "pdf", "none"] = "auto"
    """pyfolio's tear sheet, `backtest/tear_sheet.png` or `.pdf`; `auto`: a PNG where pyfolio is
    installed (the extra `report`) and the window is a month or longer."""

    @field_validator("window", mode="before")
    @classmethod
    def _one_or_several(cls, value: object) -> object:
        return (value,) if isinstance(value, str) else value

    @field_validator("window")
    @classmethod
    def _each_once(cls, windows: tuple[Window, ...]) -> tuple[Window, ...]:
        return tuple(dict.fromkeys(windows))


class RunConfig(DataConfig):
    """Everything a run is made from. Equal settings and bars give equal results, on the machines of
    `reproducible`."""

    seed: int = Field(0, ge=0)
    """Root of all randomness of agents and tournament (a synthetic market has its own
    seed)."""
    device: str = Field("auto", json_schema_extra={"examples": ["auto", "cpu", "cuda"]})
    """`auto` (CUDA if present; the CPU if `across_machines`), `cpu`, `cuda` or `cuda:1`."""
    env: Annotated[TradingSettings | GymnasiumSettings, Field(discriminator="kind")] = (
        TradingSettings()
    )
    agent: OneOrSeveralAgents = PPO()
    """The algorithm and its settings; or a list of several, which race each other in a
    tournament."""
    from_run: PathText | None = None
    """`--from RUN`: a run (its folder or URL) whose leaderboard the first pods start from, with its
    networks and optimisers; on other symbols, too, where the network allows it. None: from new
    weights."""
    tournament: TournamentSettings = TournamentSettings()
    launcher: SerializeAsAny[LauncherSettings] = LauncherSettings()
    operations: OperationsSettings = OperationsSettings()
    backtest: BacktestSettings = BacktestSettings()
    walkforward: WalkForwardSettings = WalkForwardSettings()
    """Only for `fintrader walkforward`."""

    @model_validator(mode="before")
    @classmethod
    def _default_to_trading(cls, values: Any) -> Any:
        """The trading environment is the default kind; a classic one has one metric."""
        env = values.get("env") if isinstance(values, dict) else None
        if not isinstance(env, dict):
            return values
        race = values.get("tournament", {})
        if env.get("kind") == "gymnasium" and isinstance(race, dict):
            values = {**values, "tournament": {"metric": "return", **race}}
        return {**values, "env": {"kind": "trading", **env}}

    @field_validator("launcher", mode="before")
    @classmethod
    def _choose_launcher(cls, launcher: Any) -> Any:
        """Read the launcher's settings with its own model."""
        values = {"kind": launcher} if isinstance(launcher, str) else launcher
        if not isinstance(values, Mapping):
            return values
        kind = str(values.get("kind", "local"))
        if kind not in ("local", *LAUNCHERS) and ":" not in kind:
            raise ValueError(f"expected local, {', '.join(LAUNCHERS)} or 'package.module:name'")
        return validate_below(launcher_models().get(kind, LauncherSettings), values)

    @field_validator("device")
    @classmethod
    def _known_device(cls, device: str) -> str:
        if not _DEVICE.fullmatch(device):
            raise ValueError("expected auto, cpu, cuda or cuda:N")
        return device

    @model_validator(mode="after")
    def _no_gpu_across_machines(self) -> RunConfig:
        if self.reproducible == "across_machines":
            for name, devices in (
                ("device", (self.device,)),
                ("tournament.devices", self.tournament.devices),
            ):
                if any(
                    device != "auto" and set(device.split("/")) != {"cpu"} for device in devices
                ):
                    raise ValueError(
                        f"{name}: reproducible: across_machines needs the CPU; set {name} to cpu"
                    )
        return self

    @model_validator(mode="after")
    def _no_function_of_this_process(self) -> RunConfig:
        refuse_own(self.data.features.names, "data.features.names")
        refuse_own([getattr(self.env, "reward", "")], "env.reward")
        return self

    @model_validator(mode="after")
    def _learns_between_fusions(self) -> RunConfig:
        race = self.tournament
        steps = (race.budget.env_steps or 0) // (race.fusions * race.learners)
        for agent in self.agents if race.learners > 1 and steps else ():
            starts = getattr(agent, "learning_starts", 0)
            if starts >= steps:
                raise ValueError(
                    f"agent.learning_starts is {starts}, and a learner has {steps}"
                    " steps between two fusions, so it would never learn; lower it, or"
                    " tournament.fusions"
                )
        return self

    @model_validator(mode="after")
    def _whole_games(self) -> RunConfig:
        traders = getattr(self.env, "num_traders", 1)
        if self.env.num_envs % traders:
            raise ValueError(
                f"env.num_envs is {self.env.num_envs}; make it a multiple of the {traders} traders"
                " of env.traders.teams"
            )
        if getattr(self.env, "meets_leaderboard", False) and self.tournament.validation_folds:
            raise ValueError(
                "env.traders.rivals: leaderboard plays one learner a pod; leave out"
                " tournament.validation_folds, or set rivals to learner"
            )
        return self

    @model_validator(mode="after")
    def _no_market_in_a_classic_environment(self) -> RunConfig:
        race = self.tournament
        markets_only = {
            "tournament.metric": race.metric != "return",
            "tournament.validation_folds": race.validation_folds,
            "tournament.validation_windows": race.validation_windows > 1,
            "tournament.ensemble_shrinkage": race.ensemble_shrinkage != "none",
            "from_run": self.from_run,
        }
        for name, is_set in markets_only.items():
            if is_set and self.is_classic:
                raise ValueError(f"{name} needs a market, and env.kind is gymnasium; leave it out")
        return self

    @property
    def is_classic(self) -> bool:
        """True in an environment that is no market."""
        return isinstance(self.env, GymnasiumSettings)

    @property
    def agents(self) -> tuple[AgentSettings, ...]:
        """The settings of each algorithm that takes part."""
        return self.agent if isinstance(self.agent, tuple) else (self.agent,)

    @property
    def only_agent(self) -> AgentSettings:
        """The settings of the one algorithm. Raises ConfigError when there are several."""
        if len(self.agents) > 1:
            names = ", ".join(agent.algo for agent in self.agents)
            raise ConfigError(
                f"agent: {names} race each other in a tournament; to train one, choose it with"
                " --agent.algo"
            )
        return self.agents[0]

    @property
    def trading(self) -> EnvSettings:
        """The trading environment's settings. Raises ConfigError when `env.kind` is another one."""
        if isinstance(self.env, GymnasiumSettings):
            raise ConfigError(
                f"env.kind: {self.env.id} is no market, so there is no backtest; `fintrader run`"
                " races a tournament in it, and `fintrader train` trains one agent"
            )
        return EnvSettings.model_validate(dict(self.env))

    def make_launcher(self) -> LauncherFactory | None:
        """Return the factory of the tournament's launcher; None: local processes.

        Raises ConfigError when the launcher, or a package it needs, is absent.
        """
        kind = self.launcher.kind
        if kind == "local":
            return None
        if kind not in LAUNCHERS:
            factory: LauncherFactory = load_object(kind)
            return factory
        device = "cpu" if self.reproducible == "across_machines" else self.device
        on_cluster: LauncherFactory = load_part(LAUNCHERS, kind)(self.launcher, device=device)
        return on_cluster

    def resolved_device(self) -> str:
        """Return this machine's device; `cpu` if only a cluster's nodes need the GPU. Raises
        ConfigError for a local run on a GPU that is absent."""
        if self.reproducible == "across_machines":
            return "cpu"
        import torch  # late, since checking a configuration needs no torch

        if self.device == "auto":
            return "cuda" if torch.cuda.is_available() else "cpu"
        if self.device.startswith("cuda") and not torch.cuda.is_available():
            if self.launcher.kind != "local":  # the nodes have a GPU, this machine has none
                return "cpu"
            raise ConfigError(f"device: {self.device!r} is not available here; use cpu or auto")
        return self.device


CHOICES: Choices = {
    "env.kind": map_union(RunConfig.model_fields["env"].annotation, "kind"),
    "launcher.kind": launcher_models(),
    "agent.algo": map_union(RunConfig.model_fields["agent"].annotation, "algo"),
    **DATA_CHOICES,
}
"""Options that choose one of several settings models. Switching keeps the settings both share."""
RESULT_NEUTRAL = ("runs_dir", "cache", "name", "store", "launcher", "operations")
"""Settings that change no result: folders and names, where pods run, and how a run is operated."""


def changed_results(before: RunConfig, now: RunConfig) -> dict[str, tuple[Any, Any]]:
    """Dotted name -> (before, now) of every setting that differs and is not `RESULT_NEUTRAL`."""
    differences = compare_values(before.model_dump(mode="json"), now.model_dump(mode="json"))
    return {
        field: values
        for field, values in differences.items()
        if field.split(".")[0] not in RESULT_NEUTRAL
    }


def load_config(path: Path | str, chosen: Mapping[str, str] | None = None) -> RunConfig:
    """Load a configuration file, or a shipped one by its name.

    `chosen`: option -> member, of CHOICES, to switch to first.

    Raises ConfigError, one line, naming the file and the field.
    """
    values = read_values(Path(path))
    for option, choice in (chosen or {}).items():
        choose(values, option, choice, CHOICES)
    return validate(RunConfig, values, str(path))


def load_config_of_run(folder: Path) -> RunConfig:
    """Load the configuration of a run, and log the code that it imports. Raises ConfigError."""
    path = folder / "config.yaml"
    name_code(str(path), read_values(path))
    return load_config(path)


def configure(
    config: RunConfig | Mapping[str, Any] | Path | str, overrides: Mapping[str, Any]
) -> RunConfig:
    """Build a run's settings from a configuration's name, a YAML file, settings or plain values;
    `overrides` replace parts of them.

    Raises ConfigError naming the field that is wrong.
    """
    if isinstance(config, str | Path):
        values = read_values(Path(config))
        where = str(config)
    elif isinstance(config, RunConfig) and not overrides:
        return config
    elif isinstance(config, RunConfig | Mapping):
        values = config.model_dump(mode="json") if isinstance(config, RunConfig) else dict(config)
        where = "settings"
    else:
        kinds = "a name like 'quickstart', a YAML file, RunConfig or plain values"
        raise ConfigError(f"a run needs a configuration ({kinds}), not {type(config).__name__}")
    return validate(RunConfig, merge_values(values, overrides), where)
