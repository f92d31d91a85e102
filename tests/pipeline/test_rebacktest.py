import os
import shlex
import shutil
from pathlib import Path

import pytest

from fintrader.backtesting import read_backtest
from fintrader.cli import main
from fintrader.errors import ConfigError
from fintrader.pipeline.config import load_config
from fintrader.pipeline.run_stages import backtest_run, run, run_tournament, walk_forward
from fintrader.runs import Manifest
from fintrader.verdict.looks import FILE, HOME, Ledger
from tests.cli.test_commands import complaint
from tests.engines.runs import TINY, write_config
from tests.quick import slow_but

OTHERWISE = [
    *("--env.fill", "close", "--env.decision-interval", "60", "--env.cost-bps", "5"),
    *("--env.half-spread-bps", "3", "--backtest.sensitivity", "False"),
]
pytestmark = pytest.mark.usefixtures("in_this_process")
CONTROLLED = {"null_model": True, "sensitivity": False, "tear_sheet": "none"}


@pytest.fixture(scope="module")
def raced(tmp_path_factory):
    """The folder of a run whose tournament is over, without null model and without backtest."""
    source = TINY["data"]["source"] | {"num_sessions": 30}
    small = TINY["tournament"] | {"pods": 2}
    place = tmp_path_factory.mktemp("raced")
    path = write_config(place, data={"source": source}, tournament=small, backtest=CONTROLLED)
    return run_tournament(load_config(path))


@pytest.fixture(scope="module")
def judged(raced, tmp_path_factory):
    """The same run, finished by `fintrader run`."""
    folder = copy_of(raced, tmp_path_factory.mktemp("judged"))
    main(["run", str(folder / "config.yaml"), "--runs-dir", str(folder.parent)])
    return folder


def copy_of(folder, place):
    copy = Path(shutil.copytree(folder, place / "runs" / folder.name))
    if (ledger := folder.parent / FILE).is_file():
        shutil.copyfile(ledger, copy.parent / FILE)
    os.environ[HOME] = str(copy.parent)  # until the end of the module
    return copy


@pytest.mark.slow
def test_the_reported_command_gives_the_backtest_again_and_the_run_its_own(
    judged, tmp_path, request
):
    folder = copy_of(judged, tmp_path / "with a space")
    own = (folder / "backtest" / "metrics.json").read_bytes()
    before = read_backtest(folder / "backtest").context
    main(["backtest", str(folder), *OTHERWISE])
    first = read_backtest(folder / "backtest")
    metrics = (folder / "backtest" / "metrics.json").read_bytes()
    assert metrics != own
    context = first.context
    assert context.run_command == Manifest.load(folder / "manifest.json").values["command"]
    assert context.changed == {
        "fill": "close (next_open in training)",
        "decision_interval": "60 (5 in training)",
        "cost_bps": "5.0 (20.0 in training)",
        "half_spread_bps": "3.0 (0.0 in training)",
    }
    page = (folder / "backtest" / "report.html").read_text()
    assert "decides every 60 bars, fills at the close, takes up to 10% of the volume, " in page
    assert "pays 5 and a half-spread of 3 basis points a trade" in page
    for fact in (
        "decision interval",
        "fill",
        "cost bps",
        "half spread bps",
        "impact bps",
        "participation",
    ):
        assert f"{fact}</th>" in page, fact
    request.getfixturevalue("blank_reports")  # the page was read
    words = shlex.split(context.command)
    assert words[:3] == ["fintrader", "backtest", str(folder)]
    main(["backtest", str(folder)])  # as the run itself was judged
    assert (folder / "backtest" / "metrics.json").read_bytes() == own
    assert read_backtest(folder / "backtest").context.changed == {}
    main(words[1:])
    assert (folder / "backtest" / "metrics.json").read_bytes() == metrics
    again = read_backtest(folder / "backtest").context
    assert again.settings_hash == context.settings_hash
    assert again == context, "the same result is no further look"
    assert (before.look, again.look) == (1, 2)
    for _ in range(
        2
    ):  # the run itself shows its own backtest again, and then has nothing left to do
        main(["run", str(folder / "config.yaml"), "--runs-dir", str(folder.parent)])
        assert (folder / "backtest" / "metrics.json").read_bytes() == own
        assert read_backtest(folder / "backtest").context == before


@pytest.mark.parametrize(
    ("option", "value"),
    slow_but(
        2,
        4,
        every=[
            *(
                ("--tournament.pods", "99"),
                ("--agent.gamma", "0.5"),
                ("--env.action", "trade"),
                ("--seed", "7"),
            ),
            *(("--data.source.num-sessions", "31"), ("--device", "cuda:7"), ("--name", "other")),
        ],
    ),
)
def test_what_a_policy_was_trained_with_is_refused(raced, option, value):
    before = {path: path.stat().st_mtime_ns for path in raced.rglob("*") if path.is_file()}
    said = complaint("backtest", str(raced), "--env.cost-bps", "1", option, value)
    assert said.startswith(f"fintrader: {option}: ")
    assert "a backtest takes --backtest.*" in said
    assert f"fintrader run {raced}/config.yaml {option} {value}" in said
    assert {path: path.stat().st_mtime_ns for path in raced.rglob("*") if path.is_file()} == before


@pytest.mark.slow
def test_the_control_is_the_same_search_whatever_the_backtest_changes(
    raced, judged, tmp_path, blank_reports
):
    folder = copy_of(raced, tmp_path)
    main(["backtest", str(folder), "--env.cost-bps", "0", "--env.decision-interval", "60"])
    names = sorted(
        path.relative_to(judged) for path in judged.glob("null_model/**/policy.safetensors")
    )
    assert len(names) == 3  # two pods and their ensemble
    for name in names:
        assert (folder / name).read_bytes() == (judged / name).read_bytes(), name
    both = [read_backtest(home / "backtest") for home in (folder, judged)]
    searches = [stored.verdict.selection.null_model for stored in both]
    assert searches[0].free == searches[1].free is not None
    # Traded on the window as the backtest trades.
    assert both[0].context.null_model != both[1].context.null_model


@pytest.mark.slow
def test_windows_have_folders_and_looks_of_their_own(judged, tmp_path):
    folder = copy_of(judged, tmp_path)
    home = folder / "backtest"
    own = (folder / "backtest" / "metrics.json").read_bytes()
    main(["backtest", str(folder), "--backtest.window", "validation"])
    assert (home / "metrics.json").read_bytes() == own
    assert read_backtest(home).context.look == 1
    validation = read_backtest(home / "validation")
    assert (validation.context.window, validation.context.look) == ("validation", None)
    assert validation.verdict.text.startswith("No verdict: this is the validation window")
    assert read_backtest(home).verdict.window == "test"
    assert read_backtest(home).verdict.evidence.look == 1
    assert validation.equity["minute"].iloc[-1] < read_backtest(home).equity["minute"].iloc[0]
    assert validation.context.command == f"fintrader backtest {folder} --backtest.window validation"
    assert backtest_run(folder, several(folder, "validation", "test")) == folder
    assert read_backtest(home / "validation").metrics == validation.metrics
    assert (home / "metrics.json").read_bytes() == own
    command = read_backtest(home).context.command
    assert command == f"fintrader backtest {folder} --backtest.window validation test"
    main(shlex.split(command)[1:])
    assert read_backtest(home).context.look == 1
    lines = Ledger().looks()
    assert [line.look.window for line in lines] == ["test", "validation"] + [
        "validation",
        "test",
    ] * 2
    assert len({line.look.result for line in lines}) == 2


def several(folder, *windows):
    config = load_config(folder / "config.yaml")
    return config.model_copy(
        update={"backtest": config.backtest.model_copy(update={"window": windows})}
    )


@pytest.mark.slow
def test_a_run_takes_several_windows_too_and_goes_on_with_those_that_lack(judged, tmp_path):
    folder = copy_of(judged, tmp_path)
    config = several(folder, "test", "train").model_copy(update={"runs_dir": folder.parent})
    run(config)
    assert read_backtest(folder / "backtest" / "train").context.window == "train"
    assert read_backtest(folder / "backtest" / "train").opening.headline == "No verdict"
    stamp = (folder / "backtest" / "metrics.json").stat().st_mtime_ns
    (folder / "backtest" / "train" / "metrics.json").unlink()  # as a kill in the middle leaves it
    run(config)
    assert [line.look.window for line in Ledger().looks()] == [
        "test",
        "test",
        "train",
        "train",
    ]
    assert (folder / "backtest" / "metrics.json").stat().st_mtime_ns == stamp
    with pytest.raises(ConfigError, match="folds' test windows, not validation"):
        walk_forward(several(folder, "validation"))
