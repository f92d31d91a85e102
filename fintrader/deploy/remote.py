"""Requests to a broker's servers: how often they are sent, and the errors that failures become."""

from __future__ import annotations

import collections
import math
import os
import time
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from fintrader.bars.sources.alpaca import check_endpoint
from fintrader.deploy.broker import Order, OrderReport, refuse_real_money
from fintrader.errors import BrokerError, BrokerUnsureError, DeployError

_MINUTE_S = 60.0
_TRIES = 4
T = TypeVar("T")


@dataclass(frozen=True)
class RequestLimits:
    """Bounds of the requests to a broker."""

    seconds: float = 10.0
    """Longest time of one request."""
    patience_s: float = 5.0
    """Longest time in which one call waits and repeats."""
    per_minute: int = 180
    """Most requests in any minute (Alpaca allows 200)."""
    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


USUAL_LIMITS = RequestLimits()


@dataclass(frozen=True)
class Answer:
    """A server's answer: a body, or a status with its message; status 0: no readable answer."""

    status: int
    body: Any = None
    code: int = 0
    message: str = ""
    wait_s: float | None = None


class RemoteBroker:
    """The requests of a broker that is a service. A subclass sends one request (`_call_once`)."""

    kind: str
    takes_baskets = False
    takes_ids_once = True
    takes_bids_over_stops = True
    variables: Sequence[Sequence[str]]
    """Environment variables with the keys of a paper account, and with those for real money."""

    def __init__(
        self, endpoint: str | None, host: str, limits: RequestLimits, *, real_money: bool
    ) -> None:
        """endpoint: `host` unless set, or a server on this machine. Raises DeployError for real
        money while it is closed (`refuse_real_money`), another endpoint, or keys that are not
        set."""
        refuse_real_money(real_money)
        self.real_money = real_money
        address = f"https://{host}" if endpoint is None else endpoint
        self.endpoint = check_endpoint(address, host, DeployError)
        variables = self._variables = self.variables[real_money]
        self._patience_s = limits.patience_s
        self._monotonic = limits.monotonic
        self._sleep = limits.sleep
        self._sent: collections.deque[float] = collections.deque(maxlen=limits.per_minute)
        self._closed_until = -math.inf
        keys = [os.environ.get(variable, "") for variable in variables]
        # A function, so that no attribute that a log might show holds the keys.
        self._read_keys: Callable[[], list[str]] = lambda: keys
        if not all(keys):
            raise DeployError(
                f"{self.kind} needs keys; set {' and '.join(variables)} in the environment"
            )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.endpoint!r})"

    def _call_once(self, call: Callable[..., Any], arguments: Sequence[Any]) -> Answer:
        """Send one request. Errors are not passed on: their requests have the keys in the
        headers."""
        raise NotImplementedError

    def _ask(self, call: Callable[..., Any], *arguments: Any) -> Any:
        return self._call(call, *arguments, repeats=True, allowed=(200,)).body

    def _call(
        self,
        call: Callable[..., Any],
        *arguments: Any,
        repeats: bool = False,
        allowed: Container[int] = range(600),
    ) -> Answer:
        """Send a request, again after status 429, and with `repeats` also when it is unknown
        whether it arrived. Raises BrokerUnsureError without an answer, BrokerError for a status
        that is not `allowed`."""
        patient_until = self._monotonic() + self._patience_s
        wait_s = 0.25
        for tried in range(1, _TRIES + 1):
            self._wait(patient_until)
            answer = self._call_once(call, arguments)
            if answer.status == 429:
                pause_s = wait_s if answer.wait_s is None else answer.wait_s
                self._closed_until = self._monotonic() + pause_s
            elif answer.status == 200 or (400 <= answer.status < 500 and answer.status != 408):
                if answer.status not in allowed:
                    raise self._explain_refusal(answer)
                return answer
            elif not repeats or tried == _TRIES or self._monotonic() + wait_s > patient_until:
                break
            else:
                self._sleep(wait_s)
            wait_s *= 2.0
        raise BrokerUnsureError(
            f"{self.kind} gives no answer ({answer.message or f'status {answer.status}'})"
        )

    def _wait(self, patient_until: float) -> None:
        """Wait until a request may leave."""
        now = self._monotonic()
        due = self._closed_until
        if len(self._sent) == self._sent.maxlen:
            due = max(due, self._sent[0] + _MINUTE_S)
        if due > patient_until:
            raise BrokerUnsureError(
                f"{self.kind} gets no more requests for {due - now:.0f} seconds"
            )
        if due > now:
            self._sleep(due - now)
        self._sent.append(self._monotonic())

    def _explain_refusal(self, answer: Answer) -> BrokerError:
        if answer.status in (401, 403):
            return BrokerError(
                f"{self.kind} refuses the keys (status {answer.status}); check"
                f" {' and '.join(self._variables)}, and whether they belong to this kind of account"
            )
        return BrokerError(
            f"{self.kind} refuses the request (status {answer.status}: {answer.message}); correct"
            " it"
        )

    def _read(self, parse: Callable[[], T]) -> T:
        try:
            return parse()
        except (KeyError, TypeError, ValueError, AttributeError, IndexError):
            pass
        raise BrokerUnsureError(f"{self.kind}'s answer cannot be read; ask again later")

    def _clean(self, message: str) -> str:
        for key in self._read_keys():
            message = message.replace(key, "…")
        return "".join(sign for sign in message if sign.isprintable())[:200]


def report_rejection(order: Order, reason: str) -> OrderReport:
    """Report an order that the broker does not take."""
    return OrderReport(order.id, order.symbol, "rejected", order.shares, reason=reason)


def parse_seconds(text: str | None) -> float | None:
    """Parse the header Retry-After; None if missing or a date: the doubling wait then applies."""
    try:
        return max(0.0, parse_number(text))
    except (TypeError, ValueError):
        return None


def parse_number(value: Any) -> float:
    """Parse a finite number. Raises ValueError, TypeError."""
    number = float(value)
    if not math.isfinite(number):
        raise ValueError
    return number
