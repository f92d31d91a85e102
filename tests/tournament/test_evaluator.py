import numpy as np
import pytest
import torch

from fintrader import metrics
from fintrader.backtesting import simulate
from fintrader.backtesting.baselines import simulate_benchmark_portfolio
from fintrader.envs import EnvSettings
from fintrader.files import read_jsonl
from fintrader.progress import SILENT
from fintrader.tournament import evaluator
from fintrader.tournament.evaluator import ValidationCurve, evaluate
from fintrader.tournament.spec import EvaluationTerms
from tests.factories import make_market

ENV = EnvSettings(benchmark="equal_weight", cost_bps=10.0)


def cautious(obs):
    """A fifth in each of three, the rest in cash."""
    return torch.full((len(obs), 3), 0.2)


@pytest.mark.parametrize("windows", [1, 2])
def test_the_benchmark_is_traded_once_and_stands_beside_every_score(windows, monkeypatch):
    market = make_market(100, 3, session_bars=10)
    traded = []

    def portfolio(market, env, **named):
        traded.append(market)
        return simulate_benchmark_portfolio(market, env, **named)

    monkeypatch.setattr(evaluator, "simulate_benchmark_portfolio", portfolio)
    own, index = (
        one.daily_returns
        for one in (simulate(cautious, market, ENV), simulate_benchmark_portfolio(market, ENV))
    )
    found = {
        metric: evaluate([(cautious, market)], ENV, EvaluationTerms(metric, windows))
        for metric in ("information_ratio", "sharpe")
    }
    assert len(traded) == 1
    parts = list(zip(np.array_split(own, windows), np.array_split(index, windows), strict=True))
    ratios = [metrics.information_ratio(a, b) for a, b in parts]
    # Of two numbers, the mean less its standard error is the smaller one.
    assert found["information_ratio"].score == pytest.approx(min(ratios))
    assert found["information_ratio"].benchmark_score == 0.0
    assert found["sharpe"].benchmark_score == pytest.approx(
        min(metrics.sharpe(b) for _, b in parts)
    )
    for one in found.values():
        assert one.returns == tuple(own)
        assert one.active_returns == tuple(own - index)
    evaluate([(cautious, market)], ENV.model_copy(update={"cost_bps": 0.0}))
    assert len(traded) == 2  # other costs, another benchmark


def test_blocks_are_scored_as_one_series_and_who_holds_the_benchmark_scores_nothing():
    """A benchmark that never trades after its first bar can be held exactly: on every block, and
    over all of them."""
    market = make_market(120, 3, session_bars=10, gaps=False)
    env = ENV.model_copy(update={"benchmark": "cash"})
    blocks = [market.window(0, 50), market.window(70, 120)]

    def nothing(obs):
        return torch.zeros(len(obs), 3)

    held = evaluate(
        [(nothing, block) for block in blocks], env, EvaluationTerms("information_ratio")
    )
    assert held.score == held.benchmark_score == 0.0
    assert held.active_returns == (0.0,) * 10
    mixed = evaluate([(cautious, blocks[0]), (nothing, blocks[1])], env)
    alone = simulate(cautious, blocks[0], env).daily_returns
    assert mixed.returns[:4] == pytest.approx(tuple(alone[:4]))
    assert mixed.returns[4] < alone[4]  # it sells at the end of its block
    assert mixed.returns[5:] == pytest.approx((0.0,) * 5, abs=1e-12)


def test_active_utility_has_the_environments_risk_aversion():
    """What the reward trains for; who does what the benchmark does scores 0."""
    market = make_market(120, 3, session_bars=10)
    scores = {}
    for aversion in (0.0, 10.0):
        env = ENV.model_copy(update={"benchmark": "equal_weight", "risk_aversion": aversion})
        found = evaluate([(cautious, market)], env, EvaluationTerms("active_utility"))
        assert found.benchmark_score == 0.0
        scores[aversion] = found.score
        days = np.array(found.active_returns)
    assert scores[0.0] == pytest.approx(252 * days.mean())
    assert scores[0.0] - scores[10.0] == pytest.approx(252 * 5 * days.var(ddof=1))


def test_a_pods_validation_curve_is_looked_at_once_a_mark_and_stands_after_a_kill(tmp_path):
    market = make_market(100, 3, session_bars=10)
    policy = _Idle()
    asked = []

    def alive(share, env_steps):
        asked.append((share, env_steps))
        return SILENT

    def curve():
        made = ValidationCurve(tmp_path, ENV, EvaluationTerms("return"), alive)
        made.TIME_SHARE = 1.0  # no look has to wait for time to pass
        return made

    first = curve()
    for percent in (5, 13, 14, 20, 26):
        first.offer((policy, market), percent / 100, 10 * percent)
    with (tmp_path / "validation.jsonl").open(
        "a"
    ) as file:  # what somebody else wrote there harms nobody
        file.write('{"share": [0.375], "fold": {}}\n[]\n{"sha')
    killed = curve()
    for percent in (26, 40, 100):
        killed.offer((policy, market), percent / 100, 10 * percent)
    killed.offer((policy, market), 0.3, 300, fold=1)
    assert asked == [(0.13, 130), (0.26, 260), (0.4, 400), (0.3, 300)]
    killed.add(evaluate([(policy, market)], ENV, EvaluationTerms("return")), 1.0, 1000)
    killed.add(evaluate([(policy, market)], ENV, EvaluationTerms("return")), 1.0, 1000)
    rows = read_jsonl(tmp_path / "validation.jsonl")
    assert rows.pop(2)["share"] == [0.375]
    assert [(row["share"], row["fold"]) for row in rows] == [
        (0.125, None),
        (0.25, None),
        (0.375, None),
        (0.25, 1),
        (1.0, None),
    ]
    assert all(row["score"] == row["return"] == 0.0 for row in rows), "who holds cash earns nothing"


def test_a_fold_too_short_for_its_metric_has_no_curve_and_stops_nobody(tmp_path):
    curve = ValidationCurve(tmp_path, ENV, EvaluationTerms("calmar"), lambda *_: SILENT)
    for share in (0.2, 0.9):
        curve.offer((_Idle(), make_market(100, 3, session_bars=10)), share, 1, fold=0)
    assert read_jsonl(tmp_path / "validation.jsonl") == []


class _Idle(torch.nn.Module):
    """Holds cash."""

    def forward(self, obs):
        return torch.zeros(len(obs), 3)
