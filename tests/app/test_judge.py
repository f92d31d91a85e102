"""The Judge page: a file is judged as by `fintrader judge`, and its faults are messages."""

import io
import zipfile

import pytest

from fintrader.cli import main
from fintrader.verdict.looks import HOME, Ledger
from tests.app.conftest import box, healthy, one, said
from tests.judging.test_judge import make_returns

FILE = "mine.csv"


@pytest.fixture
def judge_page(open_page, tmp_path, monkeypatch):
    """`judge_page(("mine.csv", bytes), ...)`: the page once these files are chosen."""
    monkeypatch.setenv(HOME, str(tmp_path / "home"))

    def choose(*files):
        test = open_page(tmp_path, "judge_returns")
        chosen = [(name, content, "application/octet-stream") for name, content in files]
        return test.file_uploader[0].set_value(chosen).run()

    return choose


def press(test):
    one(test.button, "Judge").click()
    return test.run()


def write(frame):
    return frame.rename_axis("date").to_csv().encode()


def count_looks():
    return len(Ledger().looks())


def words(test):
    """Everything that the page says, unescaped."""
    return said(test).replace("\\", "")


def test_without_a_file_the_page_asks_for_one(open_page, tmp_path):
    test = open_page(tmp_path, "judge_returns")
    healthy(test)
    assert "Choose a file" in test.info[0].value.replace("\\", "")


def test_a_benchmark_column_may_look_like_a_path(judge_page):
    test = judge_page((FILE, write(make_returns(edge=0.0005).rename(columns={"SPY": "BTC/USD"}))))
    box(test, "Column").set_value("mine")
    box(test, "Benchmark").set_value("BTC/USD")
    healthy(press(test))
    assert count_looks() == 1


def test_the_page_says_what_the_command_prints(judge_page, tmp_path, monkeypatch, capsys):
    frame = make_returns(edge=0.0005)
    test = judge_page((FILE, write(frame)))
    box(test, "Column").set_value("mine")
    box(test, "Benchmark").set_value("SPY")
    one(test.number_input, "Trials").set_value(40)
    assert count_looks() == 0
    press(test)
    healthy(test)
    assert not test.error
    assert count_looks() == 1
    shown = words(test) + "\n".join(one.label.replace("\\", "") for one in test.expander)
    monkeypatch.setenv(HOME, str(tmp_path / "another"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / FILE).write_bytes(write(frame))
    main(["judge", FILE, "--column", "mine", "--benchmark", "SPY", "--trials", "40"])
    sentence = capsys.readouterr().out.splitlines()[0]
    finding = sentence.partition(": ")[2].partition(" With ")[0]
    assert "choice of 40 trials" in finding
    assert finding[1:] in shown
    assert shown.count("the test has 80 % power only") == 2, (
        "folded in the answer, and below the chart"
    )
    power = sentence[sentence.index("With ") :]
    assert all(part.strip(". ") in shown for part in power.split(". "))


def test_the_same_file_is_one_look_and_another_is_a_second(judge_page):
    frame = make_returns(sessions=130)[["mine"]]
    press(judge_page((FILE, write(frame))))
    press(judge_page((FILE, write(frame))))
    test = press(judge_page((FILE, write(frame + 0.0001))))
    assert "look 2 at this window" in "".join(one.label for one in test.expander)


def test_the_command_on_the_page_does_the_same(judge_page, tmp_path, monkeypatch, capsys):
    test = judge_page((FILE, write(make_returns(sessions=300))))
    box(test, "Column").set_value("mine")
    one(test.checkbox, "Held out").check()
    text = words(press(test))
    assert "stated to be held out" in "".join(one.label for one in test.expander)
    command = text.partition("In a terminal: `fintrader ")[2].partition("`")[0]
    (tmp_path / FILE).write_bytes(write(make_returns(sessions=300)))
    monkeypatch.chdir(tmp_path)
    main(command.split())
    printed = capsys.readouterr().out
    assert "stated to be held out" in printed
    assert "look 1" in printed, "the page had counted this result"


def test_a_benchmark_comes_from_a_second_file(judge_page):
    frame = make_returns(sessions=300)
    own = write(frame[["mine"]])
    test = judge_page((FILE, own), ("spy.csv", write(frame[["SPY"]])))
    assert box(test, "Benchmark").value == "spy.csv"
    press(test)
    healthy(test)
    assert "Ahead of spy by" in "".join(one.label.replace("\\", "") for one in test.expander)
    assert "--benchmark=spy.csv" in words(test)
    assert "the same name" in words(judge_page((FILE, own), (FILE, own)))


def test_months_are_called_months(judge_page):
    frame = make_returns(sessions=120, freq="ME")[["mine"]]
    text = words(press(judge_page((FILE, write(frame)))))
    assert "With 120 months" in text
    assert "Monthly returns" in text


def archive(**members):
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as file:
        for name, content in members.items():
            file.writestr(name.replace("_", "."), content)
    return data.getvalue()


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("empty.csv", b"", "cannot be read"),
        ("noise.parquet", bytes(range(256)), "cannot be read"),
        ("dates.csv", b"date,returns\nsoon,0.1\nlater,0.2\n", "no column of dates"),
        (
            "twice.csv",
            b"date,returns\n2024-01-31,0.01\n2024-01-31,0.02\n",
            "twice.csv: 2024-01-31 occurs twice",
        ),
        ("three.csv", write(make_returns(sessions=130).assign(other=0.0)), "has 3 columns"),
        ("policy.zip", archive(policy_pth=b""), "is a model"),
        ("../../up.csv", b"date\n2024-01-31\n", "Up.csv has one column"),
    ],
)
def test_a_bad_file_gets_the_error_of_the_command_and_no_look(judge_page, name, content, problem):
    test = press(judge_page((name, content)))
    healthy(test)
    assert problem.lower() in test.error[0].value.replace("\\", "").lower()
    assert not test.get("plotly_chart")
    assert count_looks() == 0


def test_files_that_run_code_cannot_be_chosen(open_page, tmp_path):
    kinds = open_page(tmp_path, "judge_returns").file_uploader[0].allowed_type
    assert ".csv" in kinds
    assert not {".pkl", ".pickle", ".p", ".joblib"} & set(kinds)


def test_a_ledger_that_was_changed_is_named(judge_page):
    press(judge_page((FILE, write(make_returns(sessions=130)[["mine"]]))))
    path = Ledger().path
    path.write_bytes(path.read_bytes().replace(b'"judge"', b'"fudge"'))
    test = press(judge_page((FILE, write(make_returns(seed=2, sessions=130)[["mine"]]))))
    assert "looks.jsonl" in test.error[0].value.replace("\\", "")
    assert not test.get("plotly_chart")
