"""Claims: sealed before a window, judged after it as a first look."""

import re
import shlex
from datetime import UTC, datetime
from types import SimpleNamespace

import pandas as pd
import pytest

import fintrader
from fintrader.cli import main
from fintrader.deploy import deployment
from fintrader.errors import ReturnsError
from fintrader.verdict import claims, looks
from fintrader.verdict.alpha import level_of_look
from fintrader.verdict.looks import HOME
from tests.judging.test_judge import make_returns

FIRST = "2021-01-02"
LAST = "2022-01-31"


@pytest.fixture
def in_2021(tmp_path, monkeypatch):
    """A ledger at noon of the last day of 2020."""

    class Clock(datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime(2020, 12, 31, 12, tzinfo=tz)

    monkeypatch.setenv(HOME, str(tmp_path / "home"))
    monkeypatch.setattr(claims, "datetime", Clock)
    monkeypatch.setattr(looks, "datetime", Clock)
    return tmp_path


def write(folder, sessions, **options):
    file = folder / "mine.csv"
    make_returns(600, **options)[:sessions].to_csv(file)
    return file


def register(capsys, file, *options):
    main(["judge", "register", str(file), *options])
    return re.match(r"Claim ([0-9a-f]{64})\n", capsys.readouterr().out)[1]


def judge(file, **options):
    table = pd.read_csv(file, index_col=0, parse_dates=True)
    return fintrader.judge(table, "SPY", **options)


def test_a_claim_is_a_first_look_whatever_was_tried_before(in_2021, capsys):
    file = write(in_2021, 260)
    digest = register(capsys, file, "--benchmark", "SPY", "--last", LAST)
    write(in_2021, 600)
    for trials in range(1, 5):
        tried = judge(file, trials=trials, column="mine", name=f"variant {trials}")
    assert tried.evidence.look == 1  # one result
    found = judge(file, claim=digest[:8])
    assert found.evidence.look == 1
    assert found.evidence.level == pytest.approx(level_of_look(1))
    assert found.question == f"claim {digest[:12]}"
    assert f"as claim {digest[:12]})" in found.text
    assert found.sessions == len(pd.bdate_range(FIRST, LAST))
    assert found.is_likely_skill
    with pytest.raises(SystemExit):
        main(["looks"])
    assert f"Claim {digest[:12]} of " in capsys.readouterr().out


def test_an_open_window_has_a_look_for_each_end(in_2021, capsys):
    file = write(in_2021, 260)
    digest = register(capsys, file, "--benchmark", "SPY")
    looks = []
    for sessions in (500, 550, 550, 600):
        write(in_2021, sessions)
        looks.append(judge(file, claim=digest).evidence.look)
    assert looks == [1, 2, 2, 3]


def test_other_returns_than_the_claimed_ones_are_refused(in_2021, capsys):
    file = write(in_2021, 260)
    digest = register(capsys, file, "--benchmark", "SPY", "--last", LAST)
    write(in_2021, 450)
    with pytest.raises(ReturnsError, match="ends on 2022-01-31, and the returns on 2021-09-22"):
        judge(file, claim=digest)
    write(in_2021, 600)
    table = pd.read_csv(file, index_col=0, parse_dates=True)
    with pytest.raises(ReturnsError, match="names the benchmark SPY, and this is cash"):
        fintrader.judge(table.mine, claim=digest)
    with pytest.raises(ReturnsError, match=f"no claim 00000000 .* there are: {digest[:12]}"):
        judge(file, claim="00000000")
    write(in_2021, 600, seed=2)
    with pytest.raises(ReturnsError, match="up to 2020-12-29 are not those of the claim"):
        judge(file, claim=digest)


def test_claims_on_one_time_share_the_level(in_2021, capsys):
    digests = {}
    for seed in (1, 1, 2, 3):
        digests[seed] = register(capsys, write(in_2021, 260, seed=seed), "--benchmark", "SPY")
    assert len(claims.list_registrations()) == 3
    found = judge(write(in_2021, 600, seed=3), claim=digests[3])
    assert found.evidence.level == pytest.approx(level_of_look(1) / 3)
    assert "one of 3 claims on its window" in found.text


def test_a_strategy_is_shown_as_it_was_sealed(in_2021, capsys):
    code = in_2021 / "strategy"
    code.mkdir()
    (code / "rule.py").write_text("WINDOW = 20\n")
    (code / "__pycache__").mkdir()
    digest = register(capsys, code, "--benchmark", "SPY")
    file = write(in_2021, 600)
    (code / "__pycache__" / "rule.pyc").write_text("made by running it")
    assert judge(file, claim=digest, strategy=code).is_likely_skill
    with pytest.raises(ReturnsError, match=r"give the files .* sealed as strategy \(strategy=\)"):
        judge(file, claim=digest)
    (code / "rule.py").write_text("WINDOW = 30\n")
    with pytest.raises(ReturnsError, match="these are not the files that the claim sealed"):
        judge(file, claim=digest, strategy=code)
    with pytest.raises(SystemExit):
        main(["judge", str(file), "--benchmark", "SPY", "--claim", digest])
    assert "(--strategy)" in capsys.readouterr().err


def test_the_printed_command_judges_the_claim(in_2021, capsys, monkeypatch):
    monkeypatch.chdir(in_2021)
    file = in_2021 / "my returns.csv"
    table = make_returns(600).assign(other=0.0)
    table[:260].to_csv(file)
    options = ["--benchmark", "SPY", "--column", "mine", "--sessions-a-year", "252"]
    with pytest.raises(SystemExit):
        main(["judge", "register", str(file), *options[:2]])
    assert "--column" in capsys.readouterr().err
    main(["judge", "register", str(file), *options])
    command = capsys.readouterr().out.splitlines()[-1]
    table.to_csv(file)
    main(shlex.split(command)[1:])
    assert "as claim" in capsys.readouterr().out


def test_a_strategy_is_claimed_against_the_benchmark_of_a_file(in_2021, capsys, monkeypatch):
    monkeypatch.chdir(in_2021)
    code = in_2021 / "rule.py"
    code.write_text("WINDOW = 20\n")
    table = make_returns(600)
    table["mine"].to_csv("mine.csv")
    table["SPY"].to_csv("spy.csv")
    digest = register(capsys, code, "--benchmark", "spy.csv")
    claim = ["--claim", digest, "--strategy", str(code)]
    main(["judge", "mine.csv", "--benchmark", "spy.csv", *claim])
    assert f"as claim {digest[:12]})" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--first", "2020-12-01"], "a window from 2020-12-01 on has begun"),
        (["--first", "20201201"], "a window from 2020-12-01 on has begun"),
        (["--first", "2020-W49-2"], "a window from 2020-12-01 on has begun"),
        (["--first", "tomorrow"], "'tomorrow' is no day"),
        (["--last", "2020-12-31"], "the window ends on 2020-12-31, before or at its first day"),
    ],
)
def test_a_claim_needs_a_window_that_has_not_begun(in_2021, capsys, options, said):
    with pytest.raises(SystemExit):
        main(["judge", "register", str(write(in_2021, 260)), "--benchmark", "SPY", *options])
    assert said in capsys.readouterr().err
    assert claims.list_registrations() == []


def test_a_day_counts_as_begun_when_it_has_begun_in_the_east():
    before, after = (datetime(2020, 12, 31, *clock, tzinfo=UTC) for clock in ((9, 59), (10, 0)))
    assert claims.find_first_day(before) == "2021-01-01"
    assert claims.find_first_day(after) == "2021-01-02"


def test_a_deployment_registers_once_and_its_report_is_judged(in_2021, capsys, caplog):
    bundle = SimpleNamespace(name="mine", id="mine-0123", benchmark="equal_weight")
    for _ in range(2):
        deployment._register(in_2021 / "mine", bundle)
    (known,) = claims.list_registrations()
    assert (known.claim.first, known.claim.last, known.claim.content) == (FIRST, None, "mine-0123")
    assert "mine is ahead of equal_weight, from 2021-01-02 on" in capsys.readouterr().out
    (in_2021 / "home" / "looks.jsonl").write_text('{"n": 1}\n')
    deployment._register(in_2021 / "mine", bundle)
    assert "could not be registered" in caplog.text


def test_a_period_that_began_before_the_window_is_left_out(in_2021, capsys):
    """A month is nearly known on its 30th, and the last day of a file may not be over."""
    months = make_returns(100, freq="ME")
    file = in_2021 / "months.csv"
    months[:13].to_csv(file)  # up to 2021-01-31, not over
    digest = register(capsys, file, "--benchmark", "SPY")
    changed = months.copy()
    changed.iloc[12] += 0.01
    found = fintrader.judge(changed, "SPY", claim=digest)
    assert found.sessions == len(months) - 13
    other = months.copy()
    other.iloc[5, 1] += 0.01
    with pytest.raises(ReturnsError, match="not those of the claim"):  # another SPY
        fintrader.judge(other, "SPY", claim=digest)


def test_a_claim_whose_line_came_after_its_window_began_is_none(in_2021):
    """The guard stands in the list of claims, not only in the command that writes them."""
    claim = claims.Claim("mine", "0" * 64, None, "cash", "2020-12-01", None)
    digest = looks.Ledger().note_claim(claim)
    with pytest.raises(ReturnsError, match=r"no claim .* there are: none"):
        claims.find_registration(digest)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"daily": {}}'])
def test_a_damaged_report_of_a_deployment_names_the_command_that_writes_it(tmp_path, capsys, text):
    for said in ("holds no drift.json of a deployment", "is damaged or of another version"):
        with pytest.raises(SystemExit):
            main(["judge", str(tmp_path)])
        error = capsys.readouterr().err
        assert said in error
        assert f"`fintrader status {tmp_path.name} --drift`" in error
        (tmp_path / "drift.json").write_text(text)
