from __future__ import annotations

import numpy as np
import pytest
import torch

from fintrader import metrics
from fintrader.backtesting import simulate
from fintrader.backtesting.baselines import benchmark_portfolio
from fintrader.envs import EnvSettings
from fintrader.tournament import evaluator
from fintrader.tournament.evaluator import evaluate
from tests.factories import make_market

ENV = EnvSettings(benchmark="equal_weight", cost_bps=10.0)


def cautious(obs: torch.Tensor) -> torch.Tensor:
    """A fifth in each of three, the rest in cash."""
    return torch.full((len(obs), 3), 0.2)


@pytest.mark.parametrize("windows", [1, 2])
def test_the_benchmark_is_traded_once_and_stands_beside_every_score(
    windows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    market, traded = make_market(100, 3, session_bars=10), []

    def portfolio(market: object, env: object, **named: object) -> object:
        traded.append(market)
        return benchmark_portfolio(market, env, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(evaluator, "benchmark_portfolio", portfolio)
    own, index = (one.daily_returns for one in (simulate(cautious, market, ENV), benchmark_portfolio(market, ENV)))
    found = {
        metric: evaluate([(cautious, market)], ENV, metric=metric, windows=windows)  # type: ignore[arg-type]
        for metric in ("information_ratio", "sharpe")
    }
    assert len(traded) == 1
    parts = list(zip(np.array_split(own, windows), np.array_split(index, windows), strict=True))
    ratios = [metrics.information_ratio(a, b) for a, b in parts]
    assert found["information_ratio"].score == pytest.approx(np.mean(ratios))
    assert found["information_ratio"].benchmark_score == 0.0
    assert found["sharpe"].benchmark_score == pytest.approx(np.mean([metrics.sharpe(b) for _, b in parts]))
    for one in found.values():
        assert one.returns == tuple(own)
        assert one.active_returns == tuple(own - index)
    evaluate([(cautious, market)], ENV.model_copy(update={"cost_bps": 0.0}))
    assert len(traded) == 2  # other costs, another benchmark


def test_blocks_are_scored_as_one_series_and_who_holds_the_benchmark_scores_nothing() -> None:
    """A benchmark that never trades after its first bar can be held exactly: on every block, and over all of them."""
    market = make_market(120, 3, session_bars=10, gaps=False)
    env = ENV.model_copy(update={"benchmark": "cash"})
    blocks = [market.window(0, 50), market.window(70, 120)]

    def nothing(obs: torch.Tensor) -> torch.Tensor:
        return torch.zeros(len(obs), 3)

    held = evaluate([(nothing, block) for block in blocks], env, metric="information_ratio")
    assert held.score == held.benchmark_score == 0.0
    assert held.active_returns == (0.0,) * 10
    mixed = evaluate([(cautious, blocks[0]), (nothing, blocks[1])], env)
    alone = simulate(cautious, blocks[0], env).daily_returns
    assert mixed.returns[:4] == pytest.approx(tuple(alone[:4]))
    assert mixed.returns[4] < alone[4]  # it sells at the end of its block
    assert mixed.returns[5:] == pytest.approx((0.0,) * 5, abs=1e-12)
