import numpy as np
import pytest

from fintrader.config import validate
from fintrader.errors import ConfigError, DataError
from fintrader.market.build import build_market, make_market
from fintrader.market.planted import planted_optimum
from fintrader.market.settings import DataSettings
from fintrader.market.tensors import MarketTensors
from tests.bars.tables import PLAIN, minute_table, stamps_of, write_csv
from tests.quick import slow_but

WINDOWS = {"fractions": [0.5, 0.25, 0.25], "embargo_sessions": 1}


@pytest.fixture(scope="module")
def bars(tmp_path_factory):
    """Eight random walks over twelve sessions."""
    return write_csv(
        tmp_path_factory.mktemp("bars"), minute_table(symbols=8, sessions=12, missing=0.02)
    )


def planted(path, **source):
    values = {"kind": "planted_in", "ic": 0.1, "horizon": 6, **source}
    return validate(
        DataSettings,
        {**PLAIN, "path": str(path), "bar_minutes": 15, "windows": WINDOWS, "source": values},
        "test",
    )


def coefficients(market, signal, horizon):
    """At each bar that has one: corr(signal, log return from the next open to that `horizon` bars
    later)."""
    opens = market.open.double().numpy()
    return np.array(
        [
            np.corrcoef(signal[t], np.log(opens[t + 1 + horizon] / opens[t + 1]))[0, 1]
            for t in range(len(opens) - horizon - 1)
        ]
    )


@pytest.mark.parametrize(("ic", "horizon"), slow_but(1, every=[(0.05, 1), (0.15, 6), (0.6, 20)]))
def test_every_window_has_the_coefficient_asked_for(bars, ic, horizon):
    market = make_market(planted(bars, ic=ic, horizon=horizon))
    assert market.feature_names[-1] == "signal"
    assert market.provenance.source.kind == "planted_in"
    described = market.provenance.planted_signal
    assert (described.ic, described.horizon, described.feature) == (ic, horizon, "signal")
    for name, window in zip(("train", "validation", "test"), market.split(), strict=True):
        signal = window.features[:, :, -1].numpy()
        found = coefficients(window, signal, horizon).mean()
        assert found == pytest.approx(ic, abs=0.01)  # cut off at 3, and members without a price
        assert described.measured_ic[name] == pytest.approx(found, abs=0.005)
        assert np.abs(signal).max() <= 3.0
        assert np.std(signal[:-1]) == pytest.approx(1.0, abs=0.02)


def test_without_a_coefficient_it_is_noise_whatever_the_prices(bars, tmp_path):
    """The negative control."""
    wanted = planted(bars, ic=0, horizon=1)
    market = make_market(wanted)
    signal = market.features[:, :, -1]
    assert signal.std() == pytest.approx(1.0, abs=0.02)
    table = minute_table(symbols=8, sessions=12, missing=0.02, seed=9)
    other = make_market(planted(write_csv(tmp_path, table), ic=0, horizon=1))
    assert not market.close.equal(other.close)
    assert signal.equal(other.features[:, :, -1])
    train = market.split().train
    found = coefficients(train, train.features[:, :, -1].numpy(), 1)
    assert 0 < abs(found.mean()) < 4 * found.std() / len(found) ** 0.5


def test_a_window_knows_nothing_of_the_next(bars, tmp_path):
    """Other prices from the first bar after a window on leave its signal as it was."""
    market = make_market(planted(bars))
    table = minute_table(symbols=8, sessions=12, missing=0.02)
    stop = market.windows.train[1]
    later = stamps_of(table) >= int(market.minutes[stop])
    prices = ["open", "high", "low", "close"]
    noise = np.exp(np.random.default_rng(1).normal(0, 0.01, int(later.sum())))
    table.loc[later, prices] = table.loc[later, prices].to_numpy() * noise[:, None]
    table["high"], table["low"] = table[prices].max(axis=1), table[prices].min(axis=1)
    changed = make_market(planted(write_csv(tmp_path, table)))
    one, other = (m.features[:, :, -1] for m in (market, changed))
    assert one[:stop].equal(other[:stop])
    assert not one[stop:].equal(other[stop:])
    assert not one[stop - 1].any()


def test_equal_seeds_give_equal_signals(bars, tmp_path):
    """In memory as through the store, whose chunks are those of the bars alone."""
    first = make_market(planted(bars, seed=3))
    paths = [build_market(planted(bars, seed=seed), cache=tmp_path / "cache") for seed in (3, 4)]
    again, other = (MarketTensors.load(path) for path in paths)
    assert first.content_hash() == again.content_hash()
    assert not first.features[:, :, -1].equal(other.features[:, :, -1])
    assert first.features[:, :, :-1].equal(other.features[:, :, :-1])
    assert len(list((tmp_path / "cache").glob("bars/files/*/manifest-*.json"))) == 1


def test_what_cannot_be_planted_is_refused(bars, tmp_path):
    for wrong in (
        {"ic": 1.0},
        {"ic": -0.1},
        {"horizon": 0},
    ):
        with pytest.raises(ConfigError):
            planted(bars, **wrong)
    with pytest.raises(
        DataError, match="200 bars ahead do not fit into the train window of 130 bars"
    ):
        make_market(planted(bars, horizon=200))
    two = write_csv(tmp_path, minute_table(symbols=2, sessions=12))
    with pytest.raises(DataError, match="no bar has 3 members"):
        make_market(planted(two))
    market = make_market(planted(bars))
    with pytest.raises(DataError, match="only a drift planted in a synthetic market"):
        planted_optimum(market.provenance.planted_drift, 20.0, 10)
