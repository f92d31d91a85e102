from __future__ import annotations

import io

from rich.console import Console

from fintrader.progress import LineProgress, TerminalProgress
from fintrader.runs import RunFolder
from fintrader.tournament.run import Orchestrator
from tests.engines.stubs import plant
from tests.tournament.conftest import Race


def test_the_view_shows_board_pods_and_events(race: Race) -> None:
    pictures: list[str] = []

    def look(orchestrator: Orchestrator) -> None:
        console = Console(file=io.StringIO(), width=150)
        console.print(orchestrator._view())
        pictures.append(console.file.getvalue())

    result = race(pods=5, how={"watch": look})
    best = result.leaderboard[0]
    assert best["pod"] in pictures[-1]
    assert f"{best['score']:.3f}" in pictures[-1]
    assert "learning_rate" in pictures[-1]
    assert "rank 1" in pictures[-1]
    assert any("p0000" in picture.split("at work")[1] for picture in pictures)


def test_pipes_get_a_line_a_result_and_a_line_a_mishap(race: Race, tmp_path: object) -> None:
    stream = io.StringIO()
    plant(RunFolder(tmp_path / "run"), "p0001", "oom")  # type: ignore[operator]
    result = race(pods=3, how={"progress": LineProgress(stream)})
    lines = stream.getvalue().splitlines()
    assert sum("rank" in line for line in lines) == 3
    assert any("p0001: lost at attempt 1 (oom" in line for line in lines)
    assert lines[-1].startswith("tournament: 3/3 pods (100 %)")
    assert result.best in lines[-1]


def test_a_terminal_gets_the_view_below_the_bar(race: Race) -> None:
    stream = io.StringIO()
    with TerminalProgress(Console(file=stream, force_terminal=True, width=150)) as progress:
        race(pods=4, how={"progress": progress})
    assert "leaderboard: validation sharpe" in stream.getvalue()
