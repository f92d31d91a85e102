"""Names, paths and contents made by somebody who means harm: nothing outside the runs folder is
ever read."""

import json
import os
import urllib.parse

import pytest

from fintrader.config import validate
from fintrader.errors import FintraderError
from fintrader.market.settings import DataSettings
from fintrader.pipeline.config import RunConfig
from fintrader.records import to_json
from fintrader.results.folders import DamagedFileError, Folder, RunsFolder
from fintrader.results.tournament_events import DamageEvent, LossEvent
from fintrader_app import artifacts, jobs, launch, markets, race
from tests.app.conftest import healthy, said
from tests.quick import slow_but

SECRET = "the-secret-nobody-may-see"


def payloads():
    """Traversal, absolute paths, NUL, control characters, encodings, look-alikes, devices, overlong
    names."""
    ups = ["..", "../", "..\\", "....//", "..;/", "..%2f", "..%5c", "..%c0%af"]
    ups += ["%2e%2e", "%2e%2e%2f", "%252e%252e%252f", "%uff0e%uff0e/"]
    ups += [
        "\u2024\u2024/",
        "\uff0e\uff0e/",
        "..\u2215",
        "..\u2044",
        "..\uff0f",
        "\u202e..",
        ".\u200b./",
    ]
    targets = [
        "",
        "secret",
        "secret/manifest.json",
        "etc/passwd",
        "demo",
        "demo/../../secret",
        "demo/manifest.json",
    ]
    found = [up * depth + target for up in ups for depth in (1, 3) for target in targets]
    found += [
        "/etc/passwd",
        "//etc/passwd",
        "/",
        "\\",
        "C:\\secret",
        "\\\\host\\share",
        "~",
        "~root",
    ]
    found += ["file:///etc/passwd"]
    found += [
        "/proc/self/environ",
        "/dev/stdin",
        "/dev/zero",
        "$HOME",
        "${HOME}",
        "`id`",
        "$(id)",
        ";id",
        "|id",
        "&id",
    ]
    found += [
        "demo\0",
        "demo\0.json",
        "\0",
        "demo\n",
        "demo\r",
        "demo\t",
        "demo ",
        " demo",
        "demo\x7f",
        "demo\x1b[31m",
    ]
    found += [
        ".",
        "...",
        "",
        "demo/",
        "/demo",
        "demo//",
        "./demo",
        "demo/.",
        "demo/..",
        ".lock",
        ".launched",
    ]
    found += [
        "-rf",
        "--help",
        "a" * 256,
        "a" * 100_000,
        "é" * 150,
        "\ud800",
        "demo\udcff",
        "\U0001f4a9" * 80,
    ]
    found += [
        "демо",
        "dеmo",
        "ｄｅｍｏ",
        "{{7*7}}",
        "${7*7}",
        "%s%n",
        "{0.__class__}",
        "demo?mode=rw",
        "demo#x",
    ]
    found += [
        "<script>alert(1)</script>",
        "<img src=x onerror=alert(1)>",
        "![x](http://example.com/x)",
    ]
    found += ["[x](javascript:1)", "' OR 1=1 --", '"; DROP TABLE pods; --']
    return list(dict.fromkeys(found))


@pytest.fixture
def fortress(site):
    """The site with a secret beside the runs folder, and links inside that lead to it."""
    secret = site / "secret"
    secret.mkdir()
    for name in ("manifest.json", "config.yaml", "metrics.json", "secret"):
        (secret / name).write_text(
            json.dumps({"format": "fintrader-run-1", "name": SECRET, "command": SECRET})
        )
    os.symlink(secret, site / "runs" / "linked")
    return site


def test_no_payload_opens_anything_outside(fortress, monkeypatch):
    runs = RunsFolder.at(fortress / "runs")
    opened = []
    real = os.open

    def watched(path, *args, **kwargs):
        opened.append(os.fspath(path))
        return real(path, *args, **kwargs)

    monkeypatch.setattr(os, "open", watched)
    for payload in payloads():
        for read in (
            lambda name: runs.run(name).json("manifest.json"),
            lambda name: runs.text(name),
            lambda name: runs.run("demo").text(name),
            lambda name: runs.run("demo").read("pods", name, "result.json"),
            lambda name: artifacts.load_learning(runs.run("demo"), name),
            lambda name: jobs.read_job(runs, name),
            lambda name: jobs.read_log_end(runs, name),
            lambda name: markets.find(name, None, [fortress / "data" / "tensors"]),
        ):
            with pytest.raises(FintraderError):
                read(payload)
    runs.run("demo").read("manifest.json")
    assert opened
    inside = (str((fortress / "runs").resolve()), str((fortress / "data").resolve()))
    assert all(os.path.realpath(path).startswith(inside) for path in opened), opened


@pytest.mark.parametrize("payload", slow_but(*range(0, 40, 3), every=payloads()[::20]))
def test_links_with_payloads_show_a_message(open_page, fortress, payload):
    if any(0xD800 <= ord(char) < 0xE000 for char in payload):
        payload = urllib.parse.quote(payload, errors="surrogatepass")
    test = open_page(
        fortress,
        "backtest",
        run=payload,
        strategy=payload,
        symbol=payload,
        day=payload,
        part=payload,
    )
    healthy(test)
    assert SECRET not in said(test)
    assert payload == "" or "is not here" in said(test)


def test_links_and_devices_inside_a_run_are_not_followed(open_page, fortress):
    demo = fortress / "runs" / "demo"
    for name in ("config.yaml", "events.jsonl", "backtest/context.json", "leaderboard.sqlite-wal"):
        (demo / name).unlink(missing_ok=True)
        (demo / name).symlink_to(fortress / "secret" / "secret")
    (demo / "backtest" / "verdict.json").unlink()
    os.mkfifo(demo / "backtest" / "verdict.json")
    for page in ("runs", "tournament", "backtest", "honesty"):
        test = open_page(fortress, page, run="demo")
        healthy(test)
        assert SECRET not in said(test)
    listed = open_page(fortress, "runs").dataframe[0].value["name"]
    assert "linked" not in set(listed)
    (demo / "backtest").rename(fortress / "secret" / "backtest")
    (demo / "backtest").symlink_to(fortress / "secret" / "backtest")
    test = open_page(fortress, "backtest", run="demo")
    healthy(test)
    assert not test.metric
    assert "symbolic link" in said(test)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "names",
    [
        pytest.param(("manifest.json", "notes.json"), marks=pytest.mark.slow),
        ("config.yaml", "events.jsonl", "leaderboard.sqlite", "backtest/equity.parquet"),
        pytest.param(
            (
                "leaderboard.sqlite-wal",
                "pods/p0001/metrics.jsonl",
                "backtest/metrics.json",
                ".lock",
            ),
            marks=pytest.mark.slow,
        ),
    ],
    ids=lambda names: names[0],
)
def test_no_page_waits_for_a_pipe(open_page, site, names):
    for name in names:
        (site / "runs" / "demo" / name).unlink(missing_ok=True)
        os.mkfifo(site / "runs" / "demo" / name)
    for page in ("runs", "tournament", "pod", "backtest", "honesty"):
        healthy(open_page(site, page, run="demo"))


def test_a_market_elsewhere_is_not_read(open_page, fortress):
    manifest = fortress / "runs" / "demo" / "manifest.json"
    values = json.loads(manifest.read_text())
    for market in (
        "/etc/passwd",
        "../../secret/secret",
        str(fortress / "secret" / "secret"),
        "x/\0",
        "a\nb",
    ):
        manifest.write_text(json.dumps({**values, "market": market}))
        test = open_page(fortress, "market", run="demo")
        healthy(test)
        assert SECRET not in said(test)
        assert not test.metric


HOSTILE_TEXT = (
    "<script>alert(1)</script> ![x](http://example.com/x.png) [y](javascript:alert(1)) :red[z]"
    " $x^2$ `c` **b**"
)


def test_texts_of_a_run_are_escaped_on_every_page(open_page, site):
    demo = site / "runs" / "demo"
    manifest = json.loads((demo / "manifest.json").read_text())
    verdict = json.loads((demo / "backtest" / "verdict.json").read_text())
    contents = {
        "manifest.json": {
            **manifest,
            "device": HOSTILE_TEXT,
            "command": HOSTILE_TEXT,
            "created": HOSTILE_TEXT,
        },
        "backtest/context.json": {"window": HOSTILE_TEXT, "trials": HOSTILE_TEXT},
        "backtest/verdict.json": {
            **verdict,
            "sentences": [HOSTILE_TEXT] * 3,
            "strategy": HOSTILE_TEXT,
            "caveats": [HOSTILE_TEXT],
            "evidence": verdict["evidence"] | {"against": HOSTILE_TEXT},
            "excess": {HOSTILE_TEXT: verdict["excess"]["equal_weight"]},
            "selection": verdict["selection"] | {"sentence": HOSTILE_TEXT},
        },
    }
    for name, values in contents.items():
        (demo / name).write_text(json.dumps(values))
    kinds = ("markdown", "caption", "info", "warning", "error", "success", "title", "header")
    for page in ("runs", "backtest", "honesty", "tournament"):
        test = open_page(site, page, run="demo")
        healthy(test)
        rendered = "\n".join(
            str(element.value) for kind in kinds for element in getattr(test, kind)
        )
        for live in ("<script>", "![x]", "[y](", ":red[", "$x^2$"):
            assert live not in rendered, (page, live)


def test_secrets_in_settings_and_events_are_never_shown(open_page, site):
    demo = site / "runs" / "demo"
    secrets = (
        "api_key: s3cr3t-a",
        "url: https://user:s3cr3t-b@example.com/x",
        "a: {b: {token: s3cr3t-c, user: me}}",
    )
    (demo / "config.yaml").write_text("\n".join(("name: demo", *secrets)))
    detail = "OSError at https://user:s3cr3t-a@example.com/x and s3://b/x?X-Amz-Signature=s3cr3t-b"
    lost = LossEvent(pod="p0001", attempt=1, reason="died", detail=detail, time=1.8e9)
    damaged = DamageEvent(pod="p0001", detail=detail, time=1.8e9)
    with (demo / "events.jsonl").open("a") as log:
        for event in (to_json(lost), to_json(damaged), {**to_json(lost), "token": "s3cr3t"}):
            log.write(json.dumps(event) + "\n")
    for page, expected in (("runs", "name: demo"), ("tournament", "example.com")):
        test = open_page(site, page, run="demo")
        healthy(test)
        shown = said(test) + "".join(frame.value.to_csv() for frame in test.dataframe)
        shown += "".join(chart.proto.spec for chart in test.get("plotly_chart"))
        assert expected in shown
        assert "s3cr3t" not in shown


DATA_URLS = (
    "https://user:s3cr3t@host/x.parquet",
    "s3://key:s3cr3t@bucket/bars",
    "simplecache::https://user:s3cr3t@host/x.csv",
    "https://host/x.parquet?sv=1&sig=s3cr3t",
    "https://host/x.parquet?X-Amz-Signature=s3cr3t",
)


@pytest.mark.parametrize("url", DATA_URLS)
def test_credentials_in_data_urls_are_refused_untold(url):
    for values in ({"path": url}, {"store": url}):
        with pytest.raises(FintraderError, match="password or a key") as caught:
            validate(DataSettings, values, "settings")
        assert "s3cr3t" not in str(caught.value)
    with pytest.raises(FintraderError, match=r"from_run.*password or a key") as caught:
        validate(RunConfig, {"from_run": url}, "settings")
    assert "s3cr3t" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    slow_but(
        0,
        1,
        every=[
            (f"data: {{path: '{DATA_URLS[0]}'}}", "password or a key"),
            ("env: {cost_bbs: 3}", "unknown setting; did you mean"),
            ("env: [", "not valid YAML"),
            ("{" * 3000, "nested more than 50 levels"),
            ("env: !!timestamp 99", "99 is no date"),
            ("- 1", "must be a mapping"),
        ],
    ),
)
def test_a_configuration_that_is_wrong_or_holds_credentials_is_a_message(
    open_page, tmp_path, monkeypatch, text, expected
):
    test = open_page(tmp_path, "new_run")
    monkeypatch.setenv(launch.CONFIGS_VARIABLE, str(tmp_path / "configs"))
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "wrong.yaml").write_text(text)
    test.query_params["section"] = "data"
    test.query_params["source"] = "configs/wrong.yaml"
    test.run()
    healthy(test)
    assert expected in said(test)
    assert "s3cr3t" not in said(test) + "".join(str(box.value) for box in test.text_input)


@pytest.mark.parametrize("text", ["{" * 3000, "a: !!timestamp 99", "a: &a [*a]", "tournament: [1"])
def test_a_hostile_configuration_of_a_run_is_damaged_and_no_fault(site, text):
    demo = RunsFolder.at(site / "runs").run("demo")
    (site / "runs" / "demo" / "config.yaml").write_text(text)
    with pytest.raises(DamagedFileError, match=r"config\.yaml"):
        artifacts.load_config(demo)
    assert race.count_planned_pods(demo) is None


def test_folder_refuses_what_is_too_large(tmp_path):
    (tmp_path / "big.json").write_text("[" * 100_000)
    (tmp_path / "deep.json").write_text('{"a":' * 100_000)
    folder = Folder(tmp_path.resolve())
    with pytest.raises(FintraderError, match="not valid JSON"):
        folder.json("deep.json")
    with pytest.raises(FintraderError, match="more than"):
        folder.text("big.json", limit=1000)
