"""A death of the loop, of any kind, is heard of within seconds, with what is held."""

import contextlib
import http.server
import json
import os
import signal
import socketserver
import subprocess
import sys
import threading
import time

import pytest

from fintrader.deploy import supervisor
from fintrader.deploy.alerts import SUPERVISOR, VARIABLE, Alerts, is_supervised
from fintrader.deploy.control import HEARTBEAT, JOURNAL
from fintrader.deploy.entries import Alert, Checkpoint, DeploymentStart, Flattening
from fintrader.deploy.journal import Journal
from fintrader.deploy.settings import AlertSettings
from fintrader.errors import ConfigError, RunError
from tests.engines import waiting
from tests.engines.deployments import FREE
from tests.quick import slow_but

LOOP = """
import json, os, sys, time
from pathlib import Path
from fintrader.deploy.alerts import Alerts, tell_supervisor
from fintrader.deploy.entries import Alert
from fintrader.deploy.settings import AlertSettings
home = Path(sys.argv[1])
alerts = Alerts(AlertSettings(), home.name)
assert tell_supervisor({"home": str(home)})
alerts.send(Alert("broker", "the broker does not answer"))
for text, name in ((os.getpid(), "pid"), ('{"time": %d}' % time.time_ns(), "heartbeat.json")):
    (home / name).write_text(str(text))
try:
    exec(sys.argv[2])
finally:
    alerts.finish()
"""
PARENT = """
import sys
from pathlib import Path
from fintrader.deploy import supervisor
from fintrader.deploy.settings import AlertSettings
supervisor.LOOK_SECONDS = 0.2
status = supervisor.supervise(sys.argv[2:], AlertSettings.model_validate_json(sys.argv[1]), "mine")
assert not {"torch", "pandas"} & set(sys.modules)
peak = Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]
print(int(peak) // 1024)
sys.exit(status if status >= 0 else 128 - status)
"""
SLEEP = "time.sleep(60)"


class Listener(http.server.BaseHTTPRequestHandler):
    """Keeps what it gets."""

    def do_GET(self):
        size = int(self.headers.get("Content-Length") or 0)
        self.server.got.append((self.command, self.path, self.rfile.read(size)))
        answer = b'{"ok": true, "result": {}}'
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    do_POST = do_GET

    def log_message(self, *_):
        pass


@pytest.fixture
def web():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Listener) as server:
        server.got = []
        server.at = f"127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield server
        server.shutdown()


def news(web):
    return [json.loads(body) for verb, path, body in web.got if (verb, path) == ("POST", "/news")]


@pytest.fixture
def home(tmp_path):
    """A deployment that holds shares."""
    folder = tmp_path / "mine-paper"
    folder.mkdir()
    with Journal(folder / JOURNAL) as journal:
        journal.write(
            DeploymentStart(0, "0a1b2c3d", "alpaca", "alpaca", FREE, 1e6),
            Checkpoint("PA1", 100.0, {"AAA": 4.0, "BBB": 1.5}, ()),
            at=1,
        )
    return folder


@contextlib.contextmanager
def watched(home, web, what, **settings):
    """A loop that does `what`, and its supervisor."""
    settings = AlertSettings(urls=(f"http://{web.at}/news",), **settings).model_dump_json()
    words = [sys.executable, "-c", PARENT, settings, sys.executable, "-c", LOOP, str(home), what]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    try:
        waiting.until((home / HEARTBEAT).exists)
        yield process, int((home / "pid").read_text())
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("number", slow_but(0, every=[signal.SIGKILL, signal.SIGSEGV]))
def test_a_killed_loop_is_told_with_what_it_held(home, web, number):
    with watched(home, web, SLEEP) as (process, loop):
        os.kill(loop, number)
        killed = time.monotonic()
        megabytes = process.communicate(timeout=60)[0]
    assert time.monotonic() - killed < 20
    assert process.returncode == 128 + number
    assert int(megabytes) < 120
    held = "open positions that no process manages now: 4 AAA, 1.5 BBB. Run the same command again to resume"
    assert news(web) == [
        {"deployment": "mine-paper", "kind": "broker", "text": "the broker does not answer"},
        {
            "deployment": "mine-paper",
            "kind": "ended",
            "text": f"the process was ended by {number.name}; {held}",
        },
    ]


@pytest.mark.parametrize(
    ("what", "status", "told"),
    slow_but(
        2,
        every=[
            ("pass", 0, []),
            ("alerts.send(Alert('ended', 'a bug')); sys.exit(1)", 1, ["a bug"]),
            ("os._exit(3)", 3, ["the process ended with status 3; open positions"]),
        ],
    ),
)
def test_an_end_is_told_once(home, web, what, status, told):
    with watched(home, web, what) as (process, _):
        process.communicate(timeout=60)
    assert process.returncode == status
    ends = [one["text"] for one in news(web) if one["kind"] == "ended"]
    assert len(ends) == len(told)
    assert all(text.startswith(start) for text, start in zip(ends, told, strict=True))


@pytest.mark.parametrize(
    ("number", "status", "told"), slow_but(1, every=[("INT", 130, False), ("TERM", 143, True)])
)
def test_signals_reach_the_loop(home, web, number, status, told):
    name = f"SIG{number}"
    what = f"import signal; signal.signal(signal.{name}, lambda *_: sys.exit({status})); {SLEEP}"
    with watched(home, web, what) as (process, _):
        time.sleep(0.5)
        process.send_signal(getattr(signal, name))
        process.communicate(timeout=60)
    assert process.returncode == status
    assert [one["kind"] for one in news(web)] == ["broker", *["ended"] * told]


def test_the_switch_is_called_while_the_loop_lives_and_silence_is_told(home, web, monkeypatch):
    with Journal(home / JOURNAL) as journal:
        journal.write(Flattening(), at=2)
    monkeypatch.setattr(supervisor, "PING_SECONDS", 0.0)
    alerts = Alerts(AlertSettings(urls=(f"http://{web.at}/news",)), "mine")
    watch = supervisor._Watch(alerts, f"http://{web.at}/ping")
    watch.look()  # it is starting
    assert [path for _, path, _ in web.got] == ["/ping"]
    watch.receive(f'{{"home": "{home}"'.encode())
    watch.receive(b"}\n")
    (home / HEARTBEAT).write_text(json.dumps({"time": time.time_ns()}))
    watch.look()
    assert [path for _, path, _ in web.got] == ["/ping"] * 2
    watch._began -= 1000
    (home / HEARTBEAT).write_text(json.dumps({"time": time.time_ns() - 130 * 10**9}))
    watch.look()
    watch.look()
    alerts.finish()
    assert [path for _, path, _ in web.got] == ["/ping", "/ping", "/news"]
    (told,) = news(web)
    assert told["kind"] == "silent"
    assert told["text"].startswith("the trading loop has not responded for 130 s; open positions")
    assert told["text"].endswith("4 AAA, 1.5 BBB; a flatten has not ended")


def test_a_loop_whose_supervisor_was_killed_ends(home, web):
    what = "\nwhile True:\n  alerts.look()\n  time.sleep(0.1)"
    with watched(home, web, what) as (process, loop):
        process.kill()
        process.wait()
        waiting.until(lambda: waiting.gone(loop))


def test_an_alert_goes_by_itself_once_the_supervisor_is_gone(web, monkeypatch):
    read, write = os.pipe()
    monkeypatch.setenv(SUPERVISOR, f"{write}:{os.getppid()}")
    alerts = Alerts(AlertSettings(urls=(f"http://{web.at}/news",)), "mine")
    alerts.look()
    assert alerts.send(Alert("halt", "halted"))
    assert json.loads(os.read(read, 1000)) == {
        "deployment": "mine",
        "kind": "halt",
        "text": "halted",
    }
    for text in ("again", "once more"):
        assert not alerts.send(Alert("halt", text))  # once a minute
    alerts.look()
    os.close(read)
    alerts.send(Alert("ended", "ended"))
    monkeypatch.setenv(SUPERVISOR, f"{write}:{os.getpid()}")
    assert not is_supervised()
    with pytest.raises(RunError, match="the process that supervised it was killed"):
        alerts.look()
    alerts.finish()
    os.close(write)
    # The newest of those that waited is told, late.
    assert sorted(one["text"] for one in news(web)) == ["ended", "once more"]


def test_a_receiver_that_hangs_holds_up_no_other(web, monkeypatch):
    monkeypatch.setattr("fintrader.deploy.alerts.PATIENCE_SECONDS", 3600.0)
    with socketserver.TCPServer(("127.0.0.1", 0), None) as deaf:  # takes connections, says nothing
        urls = (f"http://127.0.0.1:{deaf.server_address[1]}/", f"http://{web.at}/news")
        alerts = Alerts(AlertSettings(urls=urls), "mine")
        kinds = ["broker", "halt", "flatten", "skipped", "drift", "ended"]
        for kind in kinds:
            alerts.send(Alert(kind, kind))
        waiting.until(lambda: len(news(web)) == len(kinds))
    assert [one["kind"] for one in news(web)] == kinds


def test_an_alert_that_waited_goes_once_its_minute_is_over(web, monkeypatch):
    clock = [1000.0]
    monkeypatch.setattr("fintrader.deploy.alerts.time.monotonic", lambda: clock[0])
    alerts = Alerts(AlertSettings(urls=(f"http://{web.at}/news",)), "mine")
    for text in ("halted: a", "halted: b", "halted: c"):
        alerts.send(Alert("halt", text))
    for moment in (1059.0, 1060.0, 1061.0, 1200.0):
        clock[0] = moment
        alerts.look()
        for thread in alerts._newest.values():
            thread.join()
        texts = [one["text"] for one in news(web)]
        assert texts == ["halted: a", "halted: c"][: 1 + (moment >= 1060)]


class Mailbox(socketserver.StreamRequestHandler):
    """As much of a mail server as one message needs."""

    def handle(self):
        self.wfile.write(b"220 here\r\n")
        for line in self.rfile:
            word = line.split()[0].upper()
            if word == b"DATA":
                self.wfile.write(b"354 go on\r\n")
                lines = iter(self.rfile.readline, b".\r\n")
                self.server.got.append(b"".join(lines).decode())
            self.wfile.write(b"221 bye\r\n" if word == b"QUIT" else b"250 fine\r\n")


def test_mail_telegram_and_ntfy_get_it(web, monkeypatch):
    apprise = pytest.importorskip("apprise", reason="pip install '.[alerts]'")
    telegram = apprise.Apprise.instantiate("tgram://123456789:abcdefg_hijklmnop/12315544/")
    monkeypatch.setattr(type(telegram), "notify_url", f"http://{web.at}/bot")
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Mailbox) as mail:
        mail.got = []
        threading.Thread(target=mail.serve_forever, args=(0.05,), daemon=True).start()
        port = mail.server_address[1]
        monkeypatch.setenv(
            VARIABLE,
            f"mailto://127.0.0.1:{port}/?from=a@example.org&to=b@example.org&mode=insecure"
            " tgram://123456789:abcdefg_hijklmnop/12315544/",
        )
        alerts = Alerts(AlertSettings(urls=(f"ntfy://{web.at}/trades",)), "mine")
        alerts.send(Alert("halt", "halted: asked to halt"))
        alerts.finish()
        mail.shutdown()
    (message,) = mail.got
    assert "halted: asked to halt" in message
    assert "mine: halt" in message
    bodies = {path: body for _, path, body in web.got}
    assert set(bodies) == {"/", "/bot123456789:abcdefg_hijklmnop/sendMessage"}
    assert all(b"halted: asked to halt" in body for body in bodies.values())


@pytest.mark.parametrize("url", ["http://example.org/x", "mailx://secret", "secret"])
def test_an_address_that_cannot_be_used_is_refused_and_not_shown(url):
    pytest.importorskip("apprise", reason="pip install '.[alerts]'")
    with pytest.raises(ConfigError, match=r"address 1 of alerts\.urls") as caught:
        Alerts(AlertSettings(urls=(url,)), "mine")
    assert url not in str(caught.value)


def test_without_apprise_the_command_that_installs_it_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "apprise", None)
    with pytest.raises(ConfigError, match=r"need apprise; `.*pip install"):
        Alerts(AlertSettings(urls=("ntfys://ntfy.sh/x",)), "mine")
