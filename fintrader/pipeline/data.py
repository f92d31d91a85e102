"""The data stage: build the market of a configuration once, and check it for look-ahead."""

from __future__ import annotations

from pathlib import Path

from fintrader.backtesting.lookahead import LookaheadReport, lookahead
from fintrader.backtesting.settings import LookaheadSettings
from fintrader.envs.settings import GymnasiumSettings
from fintrader.errors import DataError, RunError, StorageError
from fintrader.files import write_json
from fintrader.market.data_commands import ensure_market
from fintrader.market.data_config import open_markets
from fintrader.market.market_file import read_description
from fintrader.pipeline.classic_stages import write_environment
from fintrader.pipeline.config import RunConfig
from fintrader.runs import Manifest
from fintrader.terminal_progress import reporter


def check_lookahead(config: RunConfig, settings: LookaheadSettings) -> LookaheadReport:
    """Change the future, build and trade again, and compare; prints the findings, and stores
    them where there is a run."""
    with reporter() as progress:
        report = lookahead(
            config.data,
            config.trading,
            settings,
            seed=config.seed,
            cache=config.cache,
            progress=progress,
        )
    print(report)
    if config.folder.root.is_dir():
        findings = {
            "leaks": list(map(str, report.leaks)),
            "alarms": report.alarms,
            "trusted": report.trusted,
            "untried": report.untried,
            "unproved": report.unproved,
            "trials": report.trials,
        }
        write_json(config.folder.root / "lookahead.json", findings)
    return report


def make_market(config: RunConfig, manifest: Manifest) -> Path:
    """Build the run's market file, or find the one it began with; describe a classic environment.
    Raises RunError when the run began with another market, DataError, StorageError."""
    with manifest.stage("data"):
        if isinstance(config.env, GymnasiumSettings):
            return write_environment(config.folder, config.env, config.agents, manifest)
        try:
            path = ensure_market(config)
        except (DataError, StorageError) as error:
            path = _stored_market(config, manifest, error)
        description, content = read_description(path)
        before = manifest.values["data_hash"]
        if before not in (None, content):
            raise RunError(
                f"{config.folder.root} was made from another market (data hash {before[:12]} then,"
                f" {content[:12]} now), of other bars or by another version of fintrader (commit"
                f" {str(manifest.values['commit'])[:12]}); restore the old bars, use that"
                " version, or choose another --name"
            )
        manifest.update(market=str(path), data_hash=content, notice=description.provenance.notice)
    return path


def _stored_market(config: RunConfig, manifest: Manifest, error: DataError | StorageError) -> Path:
    """Get the market that a run began with from the cache or its store, when its bars are no longer
    available."""
    content = manifest.values["data_hash"]
    markets = open_markets(config)
    path: Path = config.cache / str(content) / "market.safetensors"
    if (
        content is None
        or markets is None
        or not (path.is_file() or markets.fetch(content, path.parent))
    ):
        raise error
    print(
        f"the bars are not available ({error}); using the market that this run began with: {path}"
    )
    return path
