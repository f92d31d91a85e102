import errno
import os

import pytest

from fintrader import load_market
from fintrader.cli import main
from fintrader.cli.options import parse_config, parse_data_config
from fintrader.metrics import FEWEST_SESSIONS
from tests import ROOT
from tests.engines.runs import TINY, fintrader, write_config

QUICKSTART = str(ROOT / "configs" / "quickstart.yaml")


def complaint(*words):
    """What a command says that ends with a user's mistake: one line."""
    done = fintrader(*words)
    assert (done.status, done.out) == (2, "")
    assert done.err.count("\n") == 1, done.err
    return done.err


def test_options_override_the_file():
    config = parse_config(
        "run", [QUICKSTART, "--env.num-envs", "7", "--seed", "5", "--name", "other"]
    )
    assert (config.env.num_envs, config.seed, config.name) == (7, 5, "other")
    assert parse_config("run", [QUICKSTART]).name == "quickstart"


def test_fractions_stand_in_place_of_the_dates_of_a_file(tmp_path):
    dates = (
        "train: [2016-01-04, 2016-02-01], validation: [2016-02-02, 2016-02-20], test: [2016-02-22,"
        " 2016-03-10]"
    )
    path = tmp_path / "own.yaml"
    path.write_text(f"data:\n  source: {{kind: synthetic}}\n  windows: {{{dates}}}\n")
    for parse in (parse_config, parse_data_config):
        windows = parse("run", [str(path)]).data.windows
        assert str(windows.train[0]) == "2016-01-04"
        windows = parse(
            "run", [str(path), "--data.windows.fractions", "0.5", "0.3", "0.2"]
        ).data.windows
        assert (windows.train, windows.validation, windows.test) == (None, None, None)
        assert windows.fractions == (0.5, 0.3, 0.2)
    asked = load_market(
        str(path), source={"num_sessions": 20}, windows={"fractions": [0.5, 0.25, 0.25]}
    )
    assert asked.windows.train == (
        0,
        asked.num_bars * 9 // 20,
    )  # without the session of the embargo


def test_internal_errors_are_not_hidden(monkeypatch):
    monkeypatch.setattr("fintrader.cli.dispatch", lambda argv: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        main(["run"])


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EACCES, errno.EROFS])
def test_a_full_or_forbidden_disk_is_one_line(number, monkeypatch):
    def refuse(_):
        raise OSError(number, os.strerror(number), "somewhere/file")

    monkeypatch.setattr("fintrader.cli.dispatch", refuse)
    assert f"somewhere/file: {os.strerror(number)}; free space, fix permissions" in complaint("run")


@pytest.mark.parametrize(
    ("option", "words", "value"),
    [
        ("env.half_spread_bps", ["2"], 2.0),
        ("env.half_spread_bps", ["AAPL=0.5", "others=2"], {"AAPL": 0.5, "others": 2.0}),
        ("env.half_spread_bps", ["{AAPL: 1}"], {"AAPL": 1.0}),
        ("agent.network.private", ["account", "holdings"], ("account", "holdings")),
        ("data.source.bar_minutes", ["1440"], 1440),
    ],
)
def test_words_become_values_of_every_kind(option, words, value, tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("data: {start: 2024-01-02, source: {kind: yahoo}}")
    config = parse_config("run", [str(path), f"--{option}", *words])
    for name in option.split("."):
        config = getattr(config, name)
    assert config == value


@pytest.mark.slow
def test_a_finished_run_names_its_report_and_how_to_come_back_with_own_bars(tmp_path):
    config = write_config(
        tmp_path, tournament=TINY["tournament"] | {"pods": 1, "pool_size": 1, "ensemble_size": 1}
    )
    for _ in range(2):  # when it is made, and when it is there
        *printed, report, own = fintrader("run", str(config)).out.splitlines()
        first = [line.split("  ")[0].partition(":")[0] for line in printed]
        banner = "Synthetic market with a planted signal"
        assert first.count(banner) == 1
        assert first.index(banner) < first.index("Strategy")
        page = tmp_path / "runs" / "tiny" / "backtest" / "report.html"
        assert report.startswith(f"Open {page} in a browser")
        assert page.is_file()
        assert f"app --runs-dir {tmp_path / 'runs'}`" in report
        assert "init FILE`" in own


def test_the_quickstart_tests_on_half_a_year_or_more():
    """Annual figures of a quarter are extrapolated fourfold: 62 % in 64 sessions became 570 %."""
    data = parse_config("run", [QUICKSTART]).data
    assert data.source.num_sessions * data.windows.fractions[2] >= 2 * FEWEST_SESSIONS
