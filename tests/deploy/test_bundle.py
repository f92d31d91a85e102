"""Bundles: sealed, whole, and refused where they could not trade live."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fintrader.backtesting import simulate
from fintrader.deploy.bundle import BUNDLE, PARITY, POLICY, Bundle, freeze
from fintrader.deploy.bundle_record import BundleOrigin
from fintrader.deploy.entries import Mark
from fintrader.errors import DeployError
from fintrader.files import seal
from fintrader.market.build import make_market
from fintrader.market.settings import read_settings
from tests.engines.deployments import frozen, replayed, settings

ORIGIN = BundleOrigin("x", "ensemble", "", {}, 1, None, (), {})


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder with a bundle in it."""
    folder = tmp_path_factory.mktemp("bundle")
    frozen(folder)
    return folder


@pytest.fixture
def copied(home, tmp_path):
    """The bundle's own folder, to be damaged."""
    return Path(shutil.copytree(home / "bundle", tmp_path / "bundle"))


def test_a_bundle_acts_as_it_was_frozen(home):
    bundle = Bundle.open(home / "bundle")
    obs, action, minutes = bundle.parity
    with torch.no_grad():
        torch.testing.assert_close(bundle.policy(obs), action, rtol=0, atol=1e-6)
    assert len(obs) == len(minutes) == 94  # every decision of a window this short
    assert bundle.data.source.kind == "synthetic"
    assert len(bundle.id) == 8


@pytest.mark.parametrize("name", [POLICY, PARITY, "normalisation.json", BUNDLE])
def test_a_changed_byte_is_refused(copied, name):
    data = bytearray((copied / name).read_bytes())
    data[len(data) // 2] ^= 1
    (copied / name).write_bytes(data)
    with pytest.raises(DeployError, match="changed"):
        Bundle.open(copied)


def test_a_missing_file_is_refused(copied):
    (copied / POLICY).unlink()
    with pytest.raises(DeployError, match="missing or was changed"):
        Bundle.open(copied)
    with pytest.raises(DeployError, match="holds no bundle"):
        Bundle.open(copied / "nowhere")


def double(bars):
    return 2.0 * bars.close / bars.close[0]


def test_code_that_a_bundle_imports_is_named_before_it_runs(home, tmp_path, caplog):
    own = f"{__name__}:double"
    frozen(tmp_path, settings(features={"names": ["return_1", own]}))
    caplog.clear()
    Bundle.open(tmp_path / "bundle")
    assert f"importing {own}, as " in caplog.text
    caplog.clear()
    Bundle.open(home / "bundle")
    assert "imports" not in caplog.text


def test_another_version_is_refused(copied):
    body = json.loads((copied / BUNDLE).read_text())
    body.pop("sha256")
    (copied / BUNDLE).write_bytes(seal(body | {"format": "fintrader-bundle-0"}))
    with pytest.raises(DeployError, match=r"another version .* or freeze the run under another"):
        Bundle.open(copied)


def test_freezing_again_is_the_same_bundle_and_another_is_refused(tmp_path):
    first, _ = frozen(tmp_path)
    again, _ = frozen(tmp_path)
    assert first.id == again.id
    path = tmp_path / "bundle" / BUNDLE
    body = json.loads(path.read_text())
    body.pop("sha256")
    body["env"].pop("clock")  # as a version wrote it that did not know the setting
    path.write_bytes(seal(body))
    assert frozen(tmp_path)[0].id == Bundle.open(tmp_path / "bundle").id
    with pytest.raises(DeployError, match="deploys another bundle"):
        frozen(tmp_path, seed=1)


def test_a_policy_that_reads_the_clock_is_refused(tmp_path):
    with pytest.raises(DeployError, match="time_left"):
        frozen(tmp_path, private=["account"])
    for clock in ("session", "none"):
        bundle, market = frozen(
            tmp_path / clock, private=["account"], clock=clock, decision_interval=20
        )
        journal = replayed(tmp_path / clock, bundle, market)
        equity = simulate(bundle.policy, market, bundle.env).equity
        assert [entry.body.equity for entry in journal.entries(Mark)][-1] == equity[-1]


@pytest.mark.parametrize(
    ("env", "match"),
    [
        ({"fill": "close"}, "next_open"),
        ({"benchmark": "buy_and_hold"}, "equal_weight"),
        ({"short": True}, "short positions"),
        ({"option": {"bars": 5, "volatility_bps": 20.0}}, "sells no options"),
    ],
)
def test_what_cannot_be_live_is_refused(tmp_path, env, match):
    with pytest.raises(DeployError, match=match):
        frozen(tmp_path, **env)


def test_a_bundle_whose_settings_cannot_be_live_does_not_open_a_door(home):
    """Also one that was not frozen here: the refusal stands where the settings are read."""
    bundle = Bundle.open(home / "bundle")
    other = replace(bundle.record, env={**bundle.record.env, "short": True})
    with pytest.raises(DeployError, match="short positions"):
        _ = Bundle(bundle.folder, other).env


def test_a_planted_signal_is_refused(home, tmp_path):
    bundle = Bundle.open(home / "bundle")
    market = make_market(settings()).split().test
    data = read_settings(
        {"path": "bars.parquet", "source": {"kind": "planted_in", "ic": 0.1, "horizon": 5}}
    )
    with pytest.raises(DeployError, match="no live bar has"):
        freeze(
            tmp_path,
            name="x",
            policy=home / "policy.safetensors",
            data=data,
            env=bundle.env,
            market=market,
            origin=ORIGIN,
        )


def test_what_the_data_settings_name_lies_in_the_bundle(tmp_path):
    members = tmp_path / "members.csv"
    members.write_text(
        "ticker,member_from,member_to\n" + "".join(f"S00{n},2015-01-01,\n" for n in range(5))
    )
    bundle, _ = frozen(tmp_path, settings(universe={"members": str(members)}))
    members.unlink()
    kept = Bundle.open(bundle.folder).data.universe.membership
    assert kept is not None
    assert Path(kept).parent.parent == bundle.folder
    assert "S003" in Path(kept).read_text()


@pytest.mark.slow
def test_the_model_for_other_programs_says_what_it_is(home, tmp_path):
    onnx = pytest.importorskip("onnx")
    old = Bundle.open(home / "bundle")
    market = make_market(settings()).split().test
    bundle = freeze(
        tmp_path,
        name="x",
        policy=home / "policy.safetensors",
        data=settings(),
        env=old.env,
        market=market,
        origin=ORIGIN,
    )
    model = onnx.load(bundle.folder / "policy.onnx")
    told = {entry.key: entry.value for entry in model.metadata_props}
    assert json.loads(told["symbols"]) == list(market.symbols)
    assert bundle.record.onnx.largest_difference < 1e-5
