import pytest

from fintrader.cli import main
from fintrader.errors import TournamentError, UnsafePathError
from fintrader.runs import RunFolder
from fintrader.tournament.store import RunStore

pytest.importorskip("tensorboard", reason="tensorboard is missing: pip install '.[observe]'")
from fintrader.tournament.tensorboard import MARK, export


def read(folder):
    """Tag -> (step, value, wall time)."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    reader = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    reader.Reload()
    return {
        tag: [(e.step, e.value, e.wall_time) for e in reader.Scalars(tag)]
        for tag in reader.Tags()["scalars"]
    }


def test_every_value_is_there(run):
    exported = export(run)
    results = RunStore(run).read_results()
    assert exported.out == run.root / "tensorboard"
    assert exported.pods == 5
    curves = read(exported.out / "p0002")
    began = results["p0002"].started
    assert [(step, value) for step, value, _ in curves["training/loss"]] == [
        (10, 1.0),
        (20, 0.5),
        (30, pytest.approx(1 / 3)),
    ]
    assert [wall - began for *_, wall in curves["training/loss"]] == pytest.approx(
        [1, 2, 3], abs=1e-3
    )
    for pod, result in results.items():
        curves = read(exported.out / pod)
        ((step, value, _),) = curves["validation/score"]
        assert (step, value) == (result.env_steps, pytest.approx(result.score))
        assert curves["hparam/score"][0][1] == pytest.approx(result.score)
        assert "validation/calmar" not in curves, "a metric without a value has no point"
    race_curves = read(exported.out / "tournament")
    scores = [value for _, value, _ in race_curves["tournament/score"]]
    best = [value for _, value, _ in race_curves["tournament/best_score"]]
    assert best == [max(scores[: k + 1]) for k in range(5)]
    assert [value for _, value, _ in race_curves["tournament/env_steps"]] == [
        100,
        200,
        300,
        400,
        500,
    ]


def test_an_export_replaces_the_last_one_and_nothing_else(run, tmp_path):
    out = tmp_path / "board"
    export(run, out)
    first = sorted(path.name for path in (out / "p0001").iterdir())
    export(run, out)
    assert len(list((out / "p0001").iterdir())) == len(first)
    assert len(read(out / "p0002")["training/loss"]) == 3, "no value twice"
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".board")]
    foreign = tmp_path / "mine"
    foreign.mkdir()
    (foreign / "thesis.tex").touch()
    with pytest.raises(UnsafePathError, match="is no export of a run"):
        export(run, foreign)
    assert (foreign / "thesis.tex").exists()


def test_the_command(run, tmp_path, capsys):
    main(["export", str(run.root), "--format", "tensorboard", "--out", str(tmp_path / "there")])
    assert "5 pods" in capsys.readouterr().out
    assert (tmp_path / "there" / MARK).is_file()


def test_problems_are_readable(tmp_path):
    with pytest.raises(TournamentError, match="holds no tournament"):
        export(RunFolder(tmp_path))
