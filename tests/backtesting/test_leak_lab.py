"""The look-ahead check against planted leaks, and against markets without any."""

import json
import sys
from dataclasses import replace

import pytest
import torch

from fintrader import cli
from fintrader.backtesting.lookahead import implausible, lookahead
from fintrader.backtesting.lookahead.differences import compare_markets
from fintrader.backtesting.lookahead.plan import WHOLE, TrialPlan
from fintrader.backtesting.lookahead.report import LookaheadReport
from fintrader.backtesting.settings import LookaheadSettings
from fintrader.envs import EnvSettings
from fintrader.errors import ConfigError, DataError
from fintrader.market.settings import DataSettings
from fintrader.pipeline.config import load_config
from fintrader.progress import Progress
from tests.backtesting import leak_lab as lab
from tests.bars.tables import REAL_2016, REAL_2019
from tests.factories import make_market, planted_market
from tests.quick import slow_but

BRIEF = LookaheadSettings(budget_minutes=0.1)


def stays_clean(report):
    """Check that something was tried, and nothing found."""
    assert report.trials[WHOLE][0] > 0
    assert report.clean, str(report)


def with_column(values, seed=3):
    """Alarms of a random market whose first feature is this."""
    market = make_market(2000, 3, seed=seed, gaps=False)
    features = market.features.clone()
    features[..., 0] = values
    return tuple(alarm.column for alarm in implausible(replace(market, features=features)))


@pytest.mark.parametrize("noise", [0.0, 1.0, 3.0])
def test_a_column_that_holds_the_next_return_raises_an_alarm(noise):
    market = make_market(2000, 3, seed=3, gaps=False)
    ahead = torch.zeros_like(market.close)
    ahead[:-1] = (market.close[1:] / market.close[:-1]).log()
    drawn = torch.randn(ahead.shape, generator=torch.Generator().manual_seed(4)) * ahead.std()
    assert set(with_column(ahead + noise * drawn)) == {"f0"}
    assert set(with_column(-ahead + noise * drawn)) == {"f0"}


def test_a_weak_next_return_raises_an_alarm_where_nobody_says_when_it_was_known():
    """A table joined by its date, whose correlation of 0.07 an honest column of bars may have."""
    market = make_market(6000, 3, seed=3, gaps=False)
    ahead = torch.zeros_like(market.close)
    ahead[:-1] = (market.close[1:] / market.close[:-1]).log()
    drawn = torch.randn(ahead.shape, generator=torch.Generator().manual_seed(4)) * ahead.std()
    features = market.features.clone()
    features[..., 0] = ahead + 14.0 * drawn
    weak = replace(market, features=features)
    assert implausible(weak) == ()
    assert {alarm.column for alarm in implausible(weak, doubtful=("f0", "f1"))} == {"f0"}


def test_a_column_that_speaks_once_a_session_raises_an_alarm():
    market = make_market(2000, 3, seed=3, gaps=False)
    spoken = torch.zeros_like(market.close)
    spoken[19:-1:20] = (market.close[20::20] / market.close[19:-1:20]).log()
    assert set(with_column(spoken)) == {"f0"}


@pytest.mark.parametrize("seed", slow_but(0, every=range(3)))
def test_clean_columns_raise_no_alarm(seed):
    assert implausible(make_market(2000, 4, 6, seed=seed, events=True)) == ()
    planted = planted_market(4000, seed=seed)
    assert {alarm.column for alarm in implausible(planted)} <= {"signal"}
    assert implausible(planted, "signal") == ()


@pytest.mark.parametrize("form", [{"observation": "factored"}, {"observation_dtype": "bfloat16"}])
def test_any_form_of_observation_can_be_checked(form, tmp_path):
    path = lab.write_bars(tmp_path, sessions=6)
    report = lookahead(lab.settings_of(path), lab.ENV.model_copy(update=form), lab.QUICK)
    stays_clean(report)


@pytest.mark.parametrize("how", ["observation", "fill", "weights"])
def test_an_environment_that_peeks_is_caught(how):
    report = lab.with_environment(how)
    assert {leak.name for leak in report.leaks} & {"observation", "order"}
    assert not report.clean


@pytest.mark.parametrize(
    ("leaking", "honest"),
    slow_but(0, every=[(lab.EVERYWHERE[::5], lab.CLEAN[:4]), (lab.EVERYWHERE, lab.CLEAN)]),
)
def test_the_first_stage_finds_every_common_leak_and_names_no_honest_column(
    tmp_path, leaking, honest
):
    """The slow case has eighteen leaking columns and thirteen honest ones, built seven times."""
    said = Said()
    path = lab.write_bars(tmp_path, sessions=12)
    names = [*map(lab.column, (*leaking, lab.expanding_mean, lab.drawdown, lab.smoothed))]
    features = {"names": [*names, *honest], "context": lab.CONTEXT, "clip": 1e6}
    data = lab.settings_of(path, features=features)
    report = lookahead(data, lab.ENV, lab.QUICK, progress=said)
    columns = {leak.name for leak in report.leaks} - {"observation", "fill", "equity", "order"}
    assert columns == {f"feature {lab.column(one)}" for one in leaking}
    assert all(done == 0 for stage, (done, _) in report.trials.items() if stage != WHOLE)
    # Each is printed as it is found, once.
    leaks = [line for line in said.lines if line.startswith("leak: ")]
    assert len(leaks) == len(report.leaks)
    assert "Not proved, for lack of time:" in str(report)


class Said(Progress):
    """Keep the lines that stay."""

    def __init__(self):
        self.lines = []

    def print_line(self, text):
        self.lines.append(text)


@pytest.mark.slow
def test_the_same_call_goes_on_where_the_time_ended(tmp_path):
    path = lab.write_bars(tmp_path, sessions=16)
    features = {"names": ["return_1", lab.column(lab.next_return)], "context": []}
    data = lab.settings_of(path, features=features, bar_minutes=390)
    first = lookahead(data, lab.ENV, lab.QUICK, cache=tmp_path)
    (kept,) = (tmp_path / "lookahead").iterdir()
    more = lookahead(data, lab.ENV, lab.WHOLE_TIME, cache=tmp_path)
    assert "the same command resumes with them:\n  15 of 15 first bars of sessions" in str(first)
    assert more.unproved == ()
    assert {leak.name for leak in first.leaks} <= {leak.name for leak in more.leaks}
    # Nothing is left to do, and nothing is forgotten.
    said = Said()
    assert lookahead(data, lab.ENV, lab.QUICK, cache=tmp_path, progress=said) == more
    assert not [line for line in said.lines if line.startswith("leak")]
    # What lies in a damaged file is done again.
    kept.write_text(kept.read_text()[:-9])
    assert lookahead(data, lab.ENV, lab.QUICK, cache=tmp_path) == first


@pytest.mark.slow
def test_a_scrambled_future_raises_no_warning(tmp_path, capfd):
    """The bars before and after are a hundredfold apart, which no build would let pass silently."""
    path = lab.write_bars(tmp_path, sessions=8)
    lookahead(lab.settings_of(path, features={"names": ["return_1"]}), lab.ENV, lab.QUICK)
    assert "WARNING" not in "".join(capfd.readouterr())


@pytest.mark.slow
def test_a_feature_that_opens_a_file_is_named(tmp_path):
    path = lab.write_bars(tmp_path, sessions=6)
    names = [lab.column(lab.joined_table), "return_1"]
    report = lookahead(lab.settings_of(path, features={"names": names}), lab.ENV, lab.QUICK)
    (line,) = [line for line in report.trusted if "joined_table" in line]
    assert "opens README.md" in line
    assert not [leak for leak in report.leaks if leak.name.startswith("feature")]


@pytest.mark.slow
def test_a_file_that_a_module_opens_is_named_for_all_its_features(tmp_path, monkeypatch):
    (tmp_path / "factor.csv").write_text("0.5")
    (tmp_path / "own_table.py").write_text(
        "from pathlib import Path\n"
        'FACTOR = float(Path(__file__).with_name("factor.csv").read_text())\n'
        "def first(bars):\n    return bars.close\n"
        "def second(bars):\n    return FACTOR * bars.close\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own_table", raising=False)
    path = lab.write_bars(tmp_path, sessions=6)
    names = ["own_table:first", "own_table:second"]
    report = lookahead(lab.settings_of(path, features={"names": names}), lab.ENV, lab.QUICK)
    (line,) = [line for line in report.trusted if "own_table" in line]
    assert line.startswith("feature own_table:*: opens factor.csv")


@pytest.mark.slow
def test_those_that_a_few_random_cuts_let_pass(tmp_path):
    path = lab.write_bars(tmp_path, sessions=10)
    hidden = (lab.every_97th_bar, lab.memoised, lab.next_night)
    names = [*map(lab.column, (*hidden, lab.own_file)), *lab.CLEAN[:3]]
    features = {"names": names, "extra": ["given_next"], "context": []}
    report = lookahead(lab.settings_of(path, features=features), lab.ENV, lab.WHOLE_TIME)
    columns = {leak.name for leak in report.leaks if leak.name.startswith("feature")}
    assert columns == {f"feature {lab.column(one)}" for one in hidden}
    assert {alarm.split(":")[0] for alarm in report.alarms} >= {"given_next"}
    assert any("given_next" in line for line in report.trusted)
    assert any("members.csv" in line for line in report.trusted)
    assert any("own_file" in line and "stays the same" in line for line in report.trusted)
    said = str(report)
    assert said.startswith("Look-ahead found")
    assert "seen in" in said
    assert "deviations apart" in said
    assert "Taken on trust:" in said


@pytest.mark.slow
def test_every_planted_leak_is_caught(tmp_path):
    rows = lab.table(tmp_path)
    assert [kind for kind, caught in rows.items() if not caught] == []
    assert len(rows) >= 20


@pytest.mark.slow
def test_the_quickstart_is_clean():
    config = load_config("quickstart")
    report = lookahead(config.data, config.trading, BRIEF, seed=config.seed)
    stays_clean(report)
    assert any("signal" in line for line in report.trusted)


@pytest.mark.slow
def test_splits_listings_and_half_days_are_clean():
    source = {
        "kind": "synthetic",
        "num_symbols": 8,
        "num_sessions": 24,
        "missing": 0.05,
        "events": {"splits": 2, "dividends": 2, "late_listings": 1, "delistings": 1},
    }
    values = {"source": source, "start": "2020-11-09", "bar_minutes": 30}
    data = DataSettings.model_validate(values)
    report = lookahead(data, EnvSettings(), lab.WHOLE_TIME)
    stays_clean(report)
    assert report.unproved == ()


@pytest.mark.slow
@pytest.mark.real_data(REAL_2016)
def test_real_minutes_do_not_look_ahead():
    values = {"path": str(REAL_2016), "bar_minutes": 5}
    universe = {"symbols": ["AAPL", "BRCM", "CSX", "GMCR", "MSFT"]}
    data = DataSettings.model_validate({**values, "universe": universe})
    stays_clean(lookahead(data, EnvSettings(decision_interval=6), BRIEF))


@pytest.mark.slow
@pytest.mark.real_data(REAL_2019)
def test_two_years_of_real_minutes_raise_no_alarm():
    config = load_config("configs/walkforward_us14.yaml")
    data = config.data.model_copy(update={"path": str(REAL_2019)})
    stays_clean(lookahead(data.model_copy(update={"bar_minutes": 30}), config.trading, BRIEF))


def test_exit_status_and_stored_answer(tmp_path, monkeypatch):
    """What was found is another test's matter: here the environment that peeks is."""
    found = lab.with_environment("observation")
    asked = []
    monkeypatch.setattr(
        "fintrader.pipeline.data.lookahead", lambda *given, **_: asked.append(given[2]) or found
    )
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lab.yaml").write_text('{"name": "lab"}')
    (tmp_path / "runs" / "lab").mkdir(parents=True)
    with pytest.raises(SystemExit) as stop:
        cli.main(["lookahead", "lab.yaml", "--budget-minutes", "0"])
    assert stop.value.code == 1
    assert asked == [lab.QUICK]
    stored = json.loads((tmp_path / "runs" / "lab" / "lookahead.json").read_text())
    assert stored["leaks"] == list(map(str, found.leaks)) != []
    assert {"alarms", "trusted", "untried", "trials", "unproved"} <= set(stored)


def test_bars_that_could_not_be_built_are_not_proved():
    plan = TrialPlan(make_market(60, 2), "24/7", 0)
    done = len(plan.trials)
    failed = [trial.bar for trial in plan.trials if trial.stage == "other bars"][:3]
    counted = plan.count(done, failed)["other bars"]
    assert counted == tuple(number - 3 for number in plan.count(done)["other bars"])
    report = LookaheadReport((), plan.count(done, failed), untried=tuple(map(str, failed)))
    assert f"No look-ahead found: {done - 3:,} markets" in str(report)


def test_a_symbol_of_the_future_alone_is_a_leak():
    three, two = make_market(60, 3), make_market(60, 2)
    for one, other in ((three, two), (two, three)):
        assert "symbols" in {leak.name for leak in compare_markets(one, other, 40)}


def test_bad_settings_are_a_typed_error():
    with pytest.raises(ConfigError, match="budget_minutes"):
        LookaheadSettings(budget_minutes=-1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "error", "problem"),
    [
        (
            {"features": {"names": [lab.column(lab.next_rows)]}},
            DataError,
            r"next_rows.*ZeroDivisionError",
        ),
        pytest.param(
            *({"universe": {"symbols": ["ZZZ"]}}, DataError, "no bars of ZZZ"),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_an_error_of_a_build_elsewhere_is_typed(tmp_path, changes, error, problem):
    path = lab.write_bars(tmp_path, sessions=6)
    with pytest.raises(error, match=problem):
        lookahead(lab.settings_of(path, **changes), lab.ENV, lab.QUICK)
