"""The guard of the app's server, over real sockets: known hosts with the token get in."""

import asyncio
import http.client
import os
import socket
import subprocess
import sys
from contextlib import contextmanager

import pytest

pytest.importorskip("streamlit")

from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from fintrader.cli.start import AppSettings
from fintrader.errors import ConfigError
from fintrader_app import guard, launch
from tests import ROOT
from tests.engines.waiting import PATIENCE_SECONDS, answers, free_port, until

TOKEN = "a-token-of-the-tests-0123456789"
STREAM = "/_stcore/stream"


class AppProcess:
    """A real app on loopback, and requests to it with any headers."""

    def __init__(self, process, port):
        self.process = process
        self.port = port
        self.printed = ""
        self.token = ""

    def get(self, path, host=None, method="GET", **headers):
        """Status, headers and body of the answer; `host` is what the request asks for."""
        link = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_SECONDS)
        host = f"127.0.0.1:{self.port}" if host is None else host
        link.request(method, path, headers={"Host": host, **headers})
        answer = link.getresponse()
        body = answer.read().decode(errors="replace")
        link.close()
        return answer.status, answer.headers, body

    def open(self, host=None, path=STREAM, **headers):
        """A websocket that asked for `host`. Raises InvalidStatus where it is refused."""
        host = host or f"127.0.0.1:{self.port}"
        link = socket.create_connection(("127.0.0.1", self.port))
        return connect(
            f"ws://{host}{path}",
            sock=link,
            subprotocols=["streamlit"],
            additional_headers=headers,
            proxy=None,
        )

    def status_of_socket(self, host=None, path=STREAM, **headers):
        """101 for a websocket that is let in, else the status with which it is refused."""
        try:
            with self.open(host, path, **headers):
                return 101
        except InvalidStatus as refused:
            return refused.response.status_code

    @property
    def origin(self):
        return f"http://127.0.0.1:{self.port}"

    def cookie(self):
        """What a browser sends after it has opened the printed address."""
        _, headers, _ = self.get(f"/?token={self.token}")
        return str(headers["set-cookie"]).partition(";")[0]


@contextmanager
def started(folder, *options):
    """`fintrader app` with these options, from when it answers."""
    port = free_port()
    runs = str(folder / "runs")
    words = [sys.executable, "-m", "fintrader", "app", "--runs-dir", runs, "--port", str(port)]
    variables = {name: value for name, value in os.environ.items() if name != guard.TOKEN_VARIABLE}
    words += options
    process = subprocess.Popen(words, cwd=ROOT, env=variables, stdout=subprocess.PIPE, text=True)
    app = AppProcess(process, port)
    try:
        health = f"http://127.0.0.1:{port}/_stcore/health"
        until(lambda: process.poll() is not None or answers(health), "the app to answer")
        assert process.stdout is not None
        app.printed = process.stdout.readline()
        app.token = app.printed.strip().partition("?token=")[2]
        yield app
    finally:
        process.terminate()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    """The app as `fintrader app` starts it, with one more name."""
    names = ("--allow-host", "lab.example", "--allow-host", "fd00::5")
    with started(tmp_path_factory.mktemp("guarded"), *names) as app:
        yield app


@pytest.fixture(scope="module")
def unlocked(tmp_path_factory):
    with started(tmp_path_factory.mktemp("unlocked"), "--no-token") as app:
        yield app


def rendered(link, page=""):
    """Everything a page says when its script is run over this websocket."""
    asked = BackMsg()
    asked.rerun_script.query_string = ""
    asked.rerun_script.page_name = page
    link.send(asked.SerializeToString())
    said = ""
    while True:
        answer = ForwardMsg()
        answer.ParseFromString(link.recv(timeout=PATIENCE_SECONDS))
        said += str(answer.delta)
        if answer.WhichOneof("type") == "script_finished":
            return said


def test_the_printed_address_gives_a_cookie_and_leads_to_the_page(guarded):
    assert guarded.printed.strip().endswith(f" {guarded.origin}/?token={guarded.token}")
    assert len(guarded.token) >= 32
    status, headers, body = guarded.get(f"/backtest?run=demo&token={guarded.token}&part=curves")
    assert status == 303
    assert headers["location"] == "./backtest?run=demo&part=curves"
    assert guarded.token not in str(headers) + body
    name, *attributes = headers["set-cookie"].split("; ")
    assert name.startswith(f"fintrader-app-{guarded.port}=")
    assert {"HttpOnly", "SameSite=Strict", "Path=/"} == set(attributes)
    assert guarded.get("/backtest?run=demo&part=curves", Cookie=name)[0] == 200


def test_the_address_without_the_token_stays_on_the_host(guarded):
    for path in (
        "//evil.example/",
        "//evil.example",
        "/\\evil.example",
        "/%5c%5cevil.example",
        "/javascript:x",
    ):
        status, headers, _ = guarded.get(f"{path}?token={guarded.token}")
        assert status == 303
        assert headers["location"].startswith("./")
        assert "\\" not in headers["location"]


PATHS = (
    "/",
    "/runs",
    "/static/js/x.js",
    "/favicon.png",
    "/media/x",
    "/_stcore/host-config",
    "/_stcore/metrics",
    "/_stcore/health/",
    "//_stcore/health",
    "/_stcore/agent/openapi.json",
)


@pytest.mark.parametrize("path", PATHS)
def test_without_token_or_cookie_everything_is_403(guarded, path):
    for asked in (path, f"{path}?token=", f"{path}?token={TOKEN}", f"{path}?x={guarded.token}"):
        status, headers, body = guarded.get(asked)
        assert status == 403
        assert "fintrader app" in body
        assert "set-cookie" not in headers
        assert headers["content-security-policy"] == "frame-ancestors 'self'"


def test_whatever_is_not_the_cookie_is_403(guarded):
    name, _, value = guarded.cookie().partition("=")
    wrong = (
        f"{name}=",
        f"{name}=x",
        f"{name}={value[:-1]}",
        f"{name}={guarded.token}",
        f"other={value}",
        "\xff=\xff",
    )
    for cookie in wrong:
        assert guarded.get("/", Cookie=cookie)[0] == 403
    for header in ("Bearer", "Bearer x", f"Basic {guarded.token}", guarded.token):
        assert guarded.get("/", Authorization=header)[0] == 403
    assert guarded.get("/", Cookie=f"a=b; {name}={value}; c=d")[0] == 200
    assert guarded.get("/", Authorization=f"Bearer {guarded.token}")[0] == 200
    # The server itself answers: there is no such download.
    assert guarded.get("/media/absent.csv", Cookie=f"{name}={value}")[0] == 404
    for method in ("POST", "PUT", "DELETE", "OPTIONS"):
        assert guarded.get("/_stcore/upload_file/a/b", method=method)[0] == 403
        assert guarded.get("/_stcore/health", method=method)[0] == 403


def test_health_is_open_to_probes_by_any_address(guarded):
    assert guarded.get("/_stcore/health", host="10.0.0.7:8501")[::2] == (200, "ok")


FOREIGN = (
    "evil.example",
    "127.0.0.1.evil.example",
    "localhost.evil.example",
    "user@127.0.0.1",
    "127.0.0.1:80@evil.example",
    "localhost..",
    "127.0.0.1/",
    "127.0.0.1:x",
    "127.0.0.1:99999",
    "[::1",
    "::1",
    "0.0.0.0",
    "[::]",
    "127.1",
    "2130706433",
    "127.0.0.1, evil.example",
    "localhost evil.example",
    "",
)


@pytest.mark.parametrize("host", FOREIGN)
def test_a_foreign_host_is_refused(guarded, host):
    status, _, body = guarded.get("/", host=host, Cookie=guarded.cookie())
    assert status in (400, 403)  # some of these the server itself calls no request
    assert "set-cookie" not in guarded.get(f"/?token={guarded.token}", host=host)[1]
    assert status == 400 or "--allow-host" in body


OWN = ("localhost", "LocalHost", "localhost.", "127.0.0.1", "[::1]", "[0:0:0:0:0:0:0:1]")
ALLOWED = ("lab.example", "LAB.example.", "[fd00::5]", "[FD00:0:0::5]")


@pytest.mark.parametrize("host", [*OWN, *ALLOWED])
def test_a_known_host_is_allowed_however_it_is_written(guarded, host):
    for asked in (host, f"{host}:80", f"{host}:{guarded.port}"):
        assert guarded.get("/", host=asked, Authorization=f"Bearer {guarded.token}")[0] == 200
        assert guarded.get("/", host=asked)[0] == 403


def test_a_foreign_origin_is_refused(guarded):
    cookie = guarded.cookie()
    port = guarded.port
    foreign = (
        "http://evil.example",
        f"http://evil.example:{port}",
        "null",
        "",
        f"http://localhost:{port}",
    )
    foreign += (
        f"http://127.0.0.1:{port + 1}",
        "http://127.0.0.1",
        f"ftp://127.0.0.1:{port}",
        f"127.0.0.1:{port}",
    )
    foreign += (
        f"http://127.0.0.1:{port}/",
        f"http://x@127.0.0.1:{port}",
        f"http://127.0.0.1:{port}@evil.example",
    )
    for origin in foreign:
        assert guarded.get("/", Cookie=cookie, Origin=origin)[0] == 403, origin
        assert guarded.status_of_socket(Cookie=cookie, Origin=origin) == 403, origin
    assert guarded.get("/", Cookie=cookie, Origin=guarded.origin)[0] == 200
    assert guarded.status_of_socket(Cookie=cookie, Origin=guarded.origin) == 101
    behind_a_proxy = {"host": "lab.example", "Authorization": f"Bearer {guarded.token}"}
    assert guarded.get("/", **behind_a_proxy, Origin="https://lab.example")[0] == 200
    assert guarded.get("/", **behind_a_proxy, Origin="https://lab.example:8443")[0] == 403


def test_a_websocket_needs_the_cookie_or_the_token(guarded):
    evil = f"evil.example:{guarded.port}"  # a name that was made to lead here
    with_token = f"{STREAM}?token={guarded.token}"
    assert guarded.status_of_socket(evil, with_token, Origin=f"http://{evil}") == 403
    origin = guarded.origin
    assert guarded.status_of_socket(Origin=origin) == 403
    assert guarded.status_of_socket() == 403
    assert guarded.status_of_socket(path=f"{STREAM}?token={TOKEN}") == 403
    assert guarded.status_of_socket(path=f"{STREAM}?token={guarded.token}") == 101
    assert guarded.status_of_socket(Authorization=f"Bearer {guarded.token}") == 101


def test_pages_render_over_a_websocket_with_the_cookie(guarded):
    cookie = guarded.cookie()
    with guarded.open(Cookie=cookie, Origin=guarded.origin) as link:
        assert "Runs" in rendered(link)
        assert "Honesty" in rendered(link, "honesty")  # another page, over the same websocket
    with guarded.open(Cookie=cookie, Origin=guarded.origin) as link:  # and after a reconnect
        assert "Runs" in rendered(link)


@pytest.mark.slow
def test_without_a_token_hosts_and_origins_are_checked_all_the_same(unlocked):
    assert unlocked.printed.strip().endswith(f"http://127.0.0.1:{unlocked.port}/")
    assert unlocked.get("/")[0] == 200
    assert unlocked.get("/", host="evil.example")[0] == 403
    assert unlocked.get("/", Origin="http://evil.example")[0] == 403
    assert unlocked.get("/?token=")[0] == 200
    evil = f"evil.example:{unlocked.port}"
    assert unlocked.status_of_socket(host=evil, Origin=f"http://{evil}") == 403
    assert unlocked.status_of_socket(Origin="http://evil.example") == 403
    assert unlocked.status_of_socket() == 403
    with unlocked.open(Origin=unlocked.origin) as link:
        assert "Runs" in rendered(link)


@pytest.mark.slow
def test_another_server_shows_no_page(tmp_path):
    """`streamlit run` of the pages themselves has no guard in front of them."""
    port = free_port()
    words = launch.build_command(AppSettings(port=port, headless=True))
    words = [word.replace("served.py", "streamlit_app.py") for word in words]
    variables = launch.build_environment(tmp_path / "runs")
    process = subprocess.Popen(words, env=variables, cwd=ROOT, stdout=subprocess.DEVNULL)
    app = AppProcess(process, port)
    try:
        until(lambda: process.poll() is not None or answers(f"{app.origin}/_stcore/health"))
        with app.open(Origin=app.origin) as link:
            said = rendered(link)
        assert "has no guard" in said
        assert "Runs" not in said
    finally:
        process.terminate()
        process.wait()


# --- in this process ------------------------------------------------------------------------------


def passed(scope, admission):
    """The scope that the guard passes on, or None where it refuses."""
    found = []

    async def app(scope, receive, send):
        found.append(scope)

    async def send(message):
        assert message["type"] in ("http.response.start", "http.response.body", "websocket.close")

    asyncio.run(guard.Guard(app, admission)(scope, None, send))
    return found[0] if found else None


def test_a_servers_log_sees_no_token():
    """uvicorn writes the address of a websocket to its log, from the scope that the app had."""
    admission = guard.Admission(frozenset({"localhost"}), TOKEN, True, False)
    for query in (f"token={TOKEN}&a=1", f"a=1&%74oken={TOKEN}", f"token=x&a=1&token={TOKEN}"):
        for headers in ([(b"host", b"localhost")], [(b"host", b"evil.example")]):
            scope = {
                "type": "websocket",
                "path": STREAM,
                "query_string": query.encode(),
                "headers": headers,
            }
            passed(scope, admission)
            assert scope["query_string"] == b"a=1"


HOSTS = ([], [b"localhost", b"localhost"], [b"localhost", b"evil.example"], [b"\xff"])


@pytest.mark.parametrize("hosts", HOSTS)
def test_a_scope_with_two_hosts_or_none_is_refused(hosts):
    admission = guard.Admission(frozenset({"localhost"}), None, False, False)
    scope = {"type": "http", "method": "GET", "path": "/", "query_string": b""}
    assert passed({**scope, "headers": [(b"host", host) for host in hosts]}, admission) is None
    assert passed({**scope, "headers": [(b"host", b"localhost")]}, admission)
    two_origins = [
        (b"host", b"localhost"),
        (b"origin", b"http://localhost"),
        (b"origin", b"http://localhost"),
    ]
    assert passed({**scope, "headers": two_origins}, admission) is None


def test_a_wildcard_makes_no_host_known():
    for bound in ("0.0.0.0", "::", "[::]"):
        assert guard.list_hosts(bound, []) == {"localhost", "127.0.0.1", "::1"}
    assert "lab.example" in guard.list_hosts("0.0.0.0", ["LAB.example."])
    assert "xn--bcher-kva.example" in guard.list_hosts("0.0.0.0", ["bücher.example"])
    assert "192.168.1.5" in guard.list_hosts("192.168.1.5", [])


@pytest.mark.parametrize(
    "name",
    [
        "",
        " ",
        "*",
        "http://lab.example",
        "lab.example:80",
        "a b",
        "a/b",
        "x@y",
        "[::1",
        "0.0.0.0",
        "::",
        "[::]",
    ],
)
def test_a_host_that_is_none_is_a_typed_error(name):
    with pytest.raises(ConfigError, match="--allow-host"):
        launch.build_command(AppSettings(allow_host=(name,)))


def lines(*words, bound="127.0.0.1", **variables):
    admission = guard.read_admission(bound, words, dict(variables))
    return list(guard.describe(admission, bound, 8501, "", scheme="http"))


def test_what_is_printed_warns_where_it_should():
    assert lines("--no-token") == ["fintrader app: http://127.0.0.1:8501/"]
    assert lines("--no-token", bound="::1") == ["fintrader app: http://[::1]:8501/"]
    (address, wildcard) = lines(bound="0.0.0.0")
    assert address.startswith("fintrader app: http://127.0.0.1:8501/?token=")
    assert "--allow-host" in wildcard
    assert len(lines("--allow-host=lab.example", bound="0.0.0.0")) == 1
    (_, warning) = lines("--no-token", "--allow-host=lab.example", bound="0.0.0.0")
    assert "warning" in warning
    (_, warning) = lines("--no-token", bound="192.168.1.5")
    assert "warning" in warning


def test_a_token_of_the_environment_is_not_printed_and_not_inherited():
    variables = {guard.TOKEN_VARIABLE: f" {TOKEN}\n"}
    admission = guard.read_admission("127.0.0.1", [], variables)
    assert admission.token == TOKEN
    assert not variables
    assert TOKEN not in " ".join(lines(**{guard.TOKEN_VARIABLE: TOKEN}))
    assert guard.read_admission("127.0.0.1", [], {guard.TOKEN_VARIABLE: ""}).token not in (None, "")


@pytest.mark.parametrize(
    "token", ["short", "x" * 15, "with a space in it", "semicolon;0123456789", "ü" * 20, "x" * 600]
)
def test_a_weak_token_is_a_typed_error_that_does_not_repeat_it(token):
    with pytest.raises(ConfigError, match=guard.TOKEN_VARIABLE) as caught:
        guard.read_token({guard.TOKEN_VARIABLE: token})
    assert token not in str(caught.value)
