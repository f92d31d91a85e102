"""The guard of the app's server: it lets a request pass if it asks for a known host and has the
token.

Another site can point its own name at this machine (DNS rebinding); a browser then takes the app
for a part of that site. The browser sends that name in `Host`, so the guard compares it with the
names it knows. Other programs and users of this machine reach the port, too, so there is a token.
"""

from __future__ import annotations

import argparse
import hashlib
import hmac
import ipaddress
import re
import secrets
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote, unquote_plus

from fintrader.errors import ConfigError
from fintrader.system import is_loopback

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

GUARD_VARIABLE = "FINTRADER_APP_GUARD"
"""Set for pages whose server asks for a token; only these pages may steer deployments."""
TOKEN_VARIABLE = "FINTRADER_APP_TOKEN"
LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "::1")
_DEFAULT_PORTS = {"http": 80, "https": 443}
_NETLOC = re.compile(
    r"(?:\[(?P<six>[0-9A-Fa-f:.]{2,45})\]|(?P<name>[A-Za-z0-9._-]{1,254}))"
    r"(?::(?P<port>[0-9]{1,5}))?"
)
"""A host with or without a port; a user before an `@`, a path or a second host do not match."""
_TOKEN = re.compile(r"[A-Za-z0-9._~-]{16,512}")
"""Characters that need no escape in a URL or a cookie."""

_PAGE = (
    '<!doctype html><html lang="en"><meta charset="utf-8"><title>fintrader</title>'
    '<body style="font: 16px/1.5 sans-serif; max-width: 40em; margin: 3em auto; padding: 0 1em">'
    "<h1>403: {title}</h1>{text}</body></html>"
)
# The page has a link because of SameSite=Strict: a browser that comes from another site sends no
# cookie, but one that comes from this page does.
_NO_TOKEN_PAGE = _PAGE.format(
    title="this page needs the app's token",
    text=(
        "<p>Open the address that ends in <code>?token=…</code>. <code>fintrader app</code> "
        "printed it when it started: on its terminal, or in the log of its container. A token "
        f"set by <code>{TOKEN_VARIABLE}</code> is not printed; write it behind the = yourself.</p>"
        "<p>If you opened the app in this browser before and followed a link to here, "
        '<a href="">go on</a>.</p>'
    ),
)
_WRONG_HOST_PAGE = _PAGE.format(
    title="the app does not answer to this name",
    text=(
        "<p>The host or the origin of this request is not one of the app's. Start the app with "
        "<code>fintrader app --allow-host NAME</code>, which may be given several times, for the "
        "names by which browsers reach it. A proxy in front of the app must pass "
        "<code>Host</code> as the browser sent it, with the port.</p>"
    ),
)


class NetworkLocation(NamedTuple):
    """A host in its canonical form, and its port if one was given."""

    host: str
    port: int | None


def read_location(text: str) -> NetworkLocation | None:
    """Read the value of a `Host` header; None when it is not a host with or without a port."""
    match = _NETLOC.fullmatch(text)
    if match is None:
        return None
    port = int(match["port"]) if match["port"] else None
    if port is not None and not 1 <= port <= 65535:
        return None
    if match["name"]:
        name = match["name"].lower().removesuffix(".")
        return NetworkLocation(name, port) if name else None
    try:
        return NetworkLocation(ipaddress.IPv6Address(match["six"]).compressed, port)
    except ValueError:
        return None


def read_host(text: str, option: str) -> str:
    """Read a typed host, in its canonical form. Raises ConfigError naming `option`."""
    typed = text.strip()
    if ":" in typed and not typed.startswith("["):
        typed = f"[{typed}]"
    try:
        ascii_text = typed if typed.isascii() else typed.encode("idna").decode()
    except UnicodeError:
        ascii_text = ""
    location = read_location(ascii_text)
    if location is None or location.port is not None:
        raise ConfigError(
            f"{option}: {text!r} is not a host; give a name or an address alone, without scheme "
            "and port, like app.example.com or 192.168.1.5"
        )
    return location.host


def is_wildcard(host: str) -> bool:
    """Tell whether a server that listens on `host` is reached by every address of the machine."""
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def list_hosts(bound: str | None, allowed: Iterable[str]) -> frozenset[str]:
    """List the hosts that the app answers to: loopback, the one it listens on, the allowed ones.

    Raises ConfigError for a text that is not a host, and for an allowed wildcard such as 0.0.0.0.
    """
    hosts = set(LOOPBACK_HOSTS)
    for text in allowed:
        host = read_host(text, "--allow-host")
        if is_wildcard(host):
            raise ConfigError(
                f"--allow-host: {text} stands for every address of this machine; give each name or "
                "address that browsers use, like 192.168.1.5"
            )
        hosts.add(host)
    if bound is not None:
        host = read_host(bound, "--host")
        if not is_wildcard(host):
            hosts.add(host)
    return frozenset(hosts)


def read_token(variables: Mapping[str, str]) -> str | None:
    """Read the token that the environment fixes, or None. Raises ConfigError for a weak one."""
    token = variables.get(TOKEN_VARIABLE, "").strip()
    if not token:
        return None
    if _TOKEN.fullmatch(token) is None:
        raise ConfigError(
            f"{TOKEN_VARIABLE}: expected 16 to 512 letters, digits, '-', '_', '.' or '~', and got "
            f"{len(token)} characters; make one with "
            "`python -c 'import secrets; print(secrets.token_urlsafe())'`"
        )
    return token


@dataclass(frozen=True)
class Admission:
    """Rules of admission: a request must ask for one of `hosts` and have the token."""

    hosts: frozenset[str]
    token: str | None
    """None lets in requests without a token."""
    is_fixed: bool
    """True when the token comes from the environment, so that it need not be printed."""
    has_allowed: bool
    """True when `--allow-host` named hosts."""


def read_admission(
    bound: str | None, words: Sequence[str], variables: MutableMapping[str, str]
) -> Admission:
    """Read the rules of a server that listens on `bound` from the words of its command line.

    Takes the token out of `variables`, so that the runs that pages start do not inherit it. Raises
    ConfigError.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--allow-host", action="append", default=[])
    parser.add_argument("--no-token", action="store_true")
    options, _ = parser.parse_known_args(words)
    hosts = list_hosts(bound, options.allow_host)
    fixed = read_token(variables)
    variables.pop(TOKEN_VARIABLE, None)
    token = None if options.no_token else fixed or secrets.token_urlsafe(32)
    return Admission(hosts, token, fixed is not None, bool(options.allow_host))


def describe(
    admission: Admission, bound: str, port: int, root: str, *, scheme: str
) -> Iterator[str]:
    """Write the lines that a starting server prints: its address with the token, and warnings."""
    host = "127.0.0.1" if is_wildcard(bound) else bound
    address = f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}{root}/"
    if admission.token is None:
        yield f"fintrader app: {address}"
    elif admission.is_fixed:
        yield f"fintrader app: {address}?token=... (the token is the one in {TOKEN_VARIABLE})"
    else:
        yield f"fintrader app: {address}?token={admission.token}"
    if is_wildcard(bound) and not admission.has_allowed:
        yield (
            f"fintrader app: --host {bound} names no host; the app answers to localhost only, until"
            " --allow-host gives it more names or addresses"
        )
    if admission.token is None and not is_loopback(bound):
        yield (
            f"fintrader app: warning: with --no-token everybody who reaches port {port} of {bound} "
            "can start runs, hence run code; leave --no-token out, or put a proxy with a login in "
            "front"
        )


class Guard:
    """Passes on requests that ask for a known host and have the token, and refuses all others.

    A request has the token in a cookie, in an `Authorization: Bearer` header, or in its address. A
    browser that opens such an address gets the cookie and is redirected to the same one without the token.
    """

    is_installed = False
    """True in a process whose server has this guard; under any other server pages show an error."""

    def __init__(self, app: ASGIApp, admission: Admission, root: str = "") -> None:
        self.app = app
        self.hosts = admission.hosts
        self.token = admission.token
        self.health = f"{root}/_stcore/health"
        Guard.is_installed = True

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or self._is_health_check(scope):
            await self.app(scope, receive, send)
            return
        # The scope itself loses the token: a server writes the address of a websocket to its log.
        scope["query_string"], tokens = _split_query(scope["query_string"])
        has_token = any(self._is_token(token) for token in tokens)
        location = self._find_location(scope)
        if location is None:
            await _refuse(scope, send, _WRONG_HOST_PAGE)
        elif has_token and scope.get("method") in ("GET", "HEAD"):
            await self._let_in(scope, send, location)
        elif self.token is None or has_token or self._has_credential(scope, location):
            await self.app(scope, receive, send)
        else:
            await _refuse(scope, send, _NO_TOKEN_PAGE)

    def _is_health_check(self, scope: Scope) -> bool:
        """Tell whether this is a health check, which needs neither token nor known host."""
        is_http = scope["type"] == "http"
        return is_http and scope["path"] == self.health and scope["method"] in ("GET", "HEAD")

    def _find_location(self, scope: Scope) -> NetworkLocation | None:
        """Find the requested host; None when it is unknown, or a page of another origin asks."""
        hosts = _read_headers(scope, b"host")
        location = read_location(hosts[0]) if len(hosts) == 1 else None
        if location is None or location.host not in self.hosts:
            return None
        origins = _read_headers(scope, b"origin")
        if origins:
            is_allowed = len(origins) == 1 and _is_same_origin(origins[0], location)
        else:
            # Browsers send an origin with every websocket; other programs need none with a token.
            is_allowed = scope["type"] != "websocket" or self.token is not None
        return location if is_allowed else None

    def _is_token(self, text: str) -> bool:
        return self.token is not None and hmac.compare_digest(text.encode(), self.token.encode())

    def _has_credential(self, scope: Scope, location: NetworkLocation) -> bool:
        """Tell whether the headers hold the token or the cookie that was made of it."""
        for header in _read_headers(scope, b"authorization"):
            scheme, _, token = header.partition(" ")
            if scheme.lower() == "bearer" and self._is_token(token.strip()):
                return True
        wanted = _name_cookie(scope, location)
        for part in ";".join(_read_headers(scope, b"cookie")).split(";"):
            name, _, value = part.strip().partition("=")
            if name == wanted and hmac.compare_digest(value.encode(), self._make_cookie().encode()):
                return True
        return False

    def _make_cookie(self) -> str:
        """Make the cookie's value, from which the token cannot be found."""
        assert self.token is not None
        return hmac.digest(self.token.encode(), b"fintrader app cookie", hashlib.sha256).hex()

    async def _let_in(self, scope: Scope, send: Send, location: NetworkLocation) -> None:
        """Set the cookie, and redirect to the same address without the token."""
        # The target is relative: the browser stays on this host, and below the prefix that a proxy strips.
        target = "./" + quote(scope["path"].rpartition("/")[2])
        if scope["query_string"]:
            target += "?" + scope["query_string"].decode("latin-1")
        cookie = f"{_name_cookie(scope, location)}={self._make_cookie()}"
        cookie += "; Path=/; HttpOnly; SameSite=Strict"
        if _is_encrypted(scope):
            cookie += "; Secure"
        headers = [(b"location", target.encode("latin-1")), (b"set-cookie", cookie.encode())]
        await _answer(send, 303, headers)


def _split_query(query: bytes) -> tuple[bytes, list[str]]:
    """Split a query into the part without tokens, and the tokens."""
    rest = []
    tokens = []
    for part in query.decode("latin-1").split("&"):
        name, _, value = part.partition("=")
        if unquote_plus(name) == "token":
            tokens.append(unquote_plus(value))
        else:
            rest.append(part)
    return "&".join(rest).encode("latin-1"), tokens


def _read_headers(scope: Scope, name: bytes) -> list[str]:
    return [value.decode("latin-1") for key, value in scope["headers"] if key.lower() == name]


def _is_same_origin(origin: str, location: NetworkLocation) -> bool:
    """Tell whether a page of `origin` belongs to the server that was asked for by `location`.

    The scheme is not compared: a proxy may speak https to browsers and http to the app.
    """
    scheme, _, netloc = origin.partition("://")
    default = _DEFAULT_PORTS.get(scheme.lower())
    own = read_location(netloc)
    if default is None or own is None:
        return False
    return own.host == location.host and (own.port or default) == (location.port or default)


def _name_cookie(scope: Scope, location: NetworkLocation) -> str:
    """Name the cookie after the port that the browser sees: all ports share a host's cookies."""
    scheme = "https" if _is_encrypted(scope) else "http"
    return f"fintrader-app-{location.port or _DEFAULT_PORTS[scheme]}"


def _is_encrypted(scope: Scope) -> bool:
    return scope.get("scheme") in ("https", "wss")


async def _refuse(scope: Scope, send: Send, page: str) -> None:
    if scope["type"] == "websocket":
        # The server answers 403, because the websocket is closed before it was accepted.
        await send({"type": "websocket.close", "code": 1008})
    else:
        await _answer(send, 403, [(b"content-type", b"text/html; charset=utf-8")], page.encode())


async def _answer(
    send: Send, status: int, headers: list[tuple[bytes, bytes]], body: bytes = b""
) -> None:
    fixed = [(b"content-length", str(len(body)).encode()), (b"cache-control", b"no-store")]
    await send({"type": "http.response.start", "status": status, "headers": [*headers, *fixed]})
    await send({"type": "http.response.body", "body": body})
