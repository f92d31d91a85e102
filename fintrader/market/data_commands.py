"""Commands on the bars of a configuration, and on the files kept of them. Needs no torch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fintrader import reproducible
from fintrader.errors import ConfigError, DataError, FintraderError, StorageError
from fintrader.files import read_json
from fintrader.market.bar_source import open_feed
from fintrader.market.build import build_market
from fintrader.market.data_config import (
    DataConfig,
    find_store,
    load_data_config,
    open_markets,
    resolve_data,
)
from fintrader.market.garbage import Garbage, find_garbage, open_runs
from fintrader.market.inspect import (
    DryRun,
    QualityReport,
    check_stored_files,
    dry_run,
    quality_report,
    write_quality,
)
from fintrader.market.market_file import read_description, stored_minutes
from fintrader.market.settings import DataSettings
from fintrader.results.verify import Check
from fintrader.terminal_progress import reporter


def ensure_market(config: DataConfig) -> Path:
    """Return the market file of a configuration; it is built unless it is in the cache or in the
    run's store."""
    reproducible.require(config.reproducible)
    with reporter() as progress:
        return build_market(
            resolve_data(config),
            cache=config.cache,
            progress=progress,
            markets=open_markets(config),
        )


def build_data(config: DataConfig) -> Path:
    """Build the market file of a configuration, and print its content."""
    path = ensure_market(config)
    market, content = read_description(path)
    minutes = stored_minutes(path)
    first, last = (str(minutes[at].astype("datetime64[ns]"))[:16] for at in (0, -1))
    print(
        f"{path}: {len(market.symbols)} symbols x {len(minutes)} bars x"
        f" {len(market.feature_names)} features, {first} to {last} UTC, content {content[:12]}"
    )
    return path


def report_quality(config: DataConfig) -> QualityReport:
    """Report every fault and gap of a configuration's bars, as JSON and as a page in the market's
    folder; prints a summary.

    Bars too broken for a market are reported below `cache/quality/<name>`.
    """
    reproducible.require(config.reproducible)
    with reporter() as progress:
        report = quality_report(resolve_data(config), cache=config.cache, progress=progress)
        try:
            home = build_market(resolve_data(config), cache=config.cache, progress=progress).parent
        except (DataError, StorageError) as error:
            print(f"no market can be built of these bars: {error}")
            home = config.cache / "quality" / config.name
    written = write_quality(report, home)
    cells = [share for row in report.coverage for share in row if share is not None]
    print(
        f"{report.rows:,} bars of {len(report.symbols)} symbols over"
        f" {len(report.sessions)} sessions ({len(report.early_closes)} early closes);"
        f" {sum(cells) / max(len(cells), 1):.2%} of the bars of {report.bar_minutes} minutes"
        " traded"
    )
    for kind, count in report.kinds.items():
        print(f"  {kind}: {count:,}")
    for path in written:
        print(f"  {path}")
    return report


def rehearse_data(config: DataConfig) -> DryRun:
    """Print what a build would read and request, without building anything."""
    plan = dry_run(resolve_data(config), cache=config.cache)
    print(plan.describe())
    return plan


def verify_data(config: DataConfig) -> list[Check]:
    """Compare the stored bars and markets of a configuration's cache with their hashes."""
    with reporter() as progress:
        return check_stored_files(resolve_data(config), cache=config.cache, progress=progress)


def collect_garbage(configs: Sequence[DataConfig], *, remove: bool = False) -> Garbage:
    """Find and print the markets and chunks that neither these configurations nor the runs in their
    folders and stores refer to, and the objects of stored runs that nothing names.

    With `remove` they are deleted. Raises ConfigError when the configurations do not share one
    cache, DataError or StorageError when a configuration's bars cannot be found, and RunError when
    a run of a store is at work: its references are then unknown.
    """
    cache = configs[0].cache
    if any(config.cache.resolve() != cache.resolve() for config in configs):
        raise ConfigError(
            "these configurations have different caches; collect the garbage of one at a time"
        )
    settings = [resolve_data(config) for config in configs]
    markets = set[str]()
    for folder in sorted({config.runs_dir for config in configs}):
        for path in sorted(folder.glob("*/config.yaml")):
            settings += _settings_of_run(path.parent, markets, cache)
    stored = {store: open_runs(store) for store in map(find_store, configs) if store is not None}
    for store, runs in stored.items():
        for run in runs:
            run.pull()
            settings += _settings_of_run(run.home, markets, cache, store)
    garbage = find_garbage(settings, markets, cache=cache, stored=stored)
    for line in garbage.lines():
        print(line)
    size = f"{garbage.size / 1e9:.2f} GB"
    if not garbage:
        print("nothing to remove: all stored files are in use")
    elif remove:
        garbage.remove()
        print(f"removed, {size}")
    else:
        print(f"{size} would be removed; the same command with --yes removes them")
    return garbage


def _settings_of_run(
    home: Path, markets: set[str], cache: Path, store: str | None = None
) -> list[DataSettings]:
    """Load the data settings of a run, and add its market's address to `markets`; return none if
    its bars are gone."""
    manifest = home / "manifest.json"
    try:
        if manifest.is_file():
            markets.add(Path(str(read_json(manifest).get("market"))).parent.name)
        config = load_data_config(home / "config.yaml")
        config = config.model_copy(update={"store": store or config.store})
        open_feed(resolve_data(config).effective(), cache)
    except FintraderError as error:
        print(f"{home}: {error}; only its market is kept")
        return []
    return [resolve_data(config)]
