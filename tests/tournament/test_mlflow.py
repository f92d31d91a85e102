"""A run as an MLflow experiment, read back by MLflow's own client."""

import pytest

from fintrader.cli import main
from fintrader.errors import TournamentError
from fintrader.runs import RunFolder
from fintrader.tournament.store import RunStore

pytest.importorskip("mlflow", reason="mlflow is missing: pip install '.[mlflow]'")
import mlflow

from fintrader.tournament.mlflow import ADDRESS, export

NAME = "tags.mlflow.runName"


def read(address):
    """Name -> run of the experiment `run`."""
    client = mlflow.MlflowClient(tracking_uri=address)
    experiment = client.get_experiment_by_name("run")
    found = client.search_runs([experiment.experiment_id])
    assert len({one.info.run_name for one in found}) == len(found)
    return client, {one.info.run_name: one for one in found}


def test_every_pod_is_a_child_with_its_settings_and_scores(run, tmp_path):
    exported = export(run)
    client, runs = read(exported.out)
    results = RunStore(run).read_results()
    assert sorted(runs) == sorted([*results, "run"])
    for pod, result in results.items():
        one = runs[pod]
        assert one.data.tags["mlflow.parentRunId"] == runs["run"].info.run_id
        assert one.data.metrics["validation/score"] == result.score
        assert float(one.data.params["learning_rate"]) > 0
        assert one.info.status == "FINISHED"
    curve = client.get_metric_history(runs["p0002"].info.run_id, "training/loss")
    assert [(point.step, point.value) for point in curve] == [(10, 1.0), (20, 0.5), (30, 1 / 3)]
    began = results["p0002"].started
    assert [point.timestamp for point in curve] == [int(1000 * (began + k)) for k in (1, 2, 3)]
    best = client.get_metric_history(runs["run"].info.run_id, "tournament/best_score")
    assert best[-1].value == max(result.score for result in results.values())


def test_an_export_replaces_the_last_one_and_no_other_run(run, tmp_path, monkeypatch):
    address = f"sqlite:///{tmp_path / 'server.db'}"
    client = mlflow.MlflowClient(tracking_uri=address)
    foreign = client.create_run(client.create_experiment("run"), run_name="mine")
    monkeypatch.setenv(ADDRESS, address)
    for _ in range(2):
        assert export(run).out == address
    _, runs = read(address)
    assert foreign.info.run_id in {one.info.run_id for one in runs.values()}
    assert len(runs) == 1 + 1 + 5


def test_the_command(run, tmp_path, capsys):
    out = tmp_path / "there.db"
    main(["export", str(run.root), "--format", "mlflow", "--out", str(out)])
    assert "5 pods" in capsys.readouterr().out
    assert out.is_file()
    with pytest.raises(TournamentError, match="holds no tournament"):
        export(RunFolder(tmp_path))


@pytest.mark.parametrize("address", ["http://127.0.0.1:9", "garbage://", "file"])
def test_what_cannot_be_written_is_one_sentence(run, tmp_path, monkeypatch, address):
    broken = tmp_path / "text"
    broken.write_text("no database")
    monkeypatch.setenv(ADDRESS, address)
    with pytest.raises(TournamentError, match="cannot write there"):
        export(run, broken if address == "file" else None)
    assert broken.read_text() == "no database"
    with pytest.raises(TournamentError, match="is a folder"):
        export(run, tmp_path)
