"""The protocol of a tournament in a store, explored: every interleaving of heads, pods and store
calls within bounds.

Modelled are the calls that change or read the store, one a step, in the order in which
`fintrader.storage.lease`, `tournament.mirrored_store`, `tournament.orchestrator` and
`tournament.pod` make them (`test_protocol.py` holds the real code to the same invariants). The
model is harsher than any clock: a head may be superseded at any moment, goes on without noticing
for as long as it likes, and may be killed at any step, its last request landing whenever it likes
or never. A request that is repeated is one that lands twice. The pods of a head that is killed live
on, or end at any moment; each head has a machine of its own, on which it is started again, and
where one process at a time has a pod's lock.

A state is a plain tuple, and states are visited once; how many schedules lead through them is
counted (they grow with the product of the choices), so that all of millions of schedules are
checked without being walked one by one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

Spec = tuple[int, tuple[int, ...]]
"""A spec's content: the token under which it was made, and the results it had seen."""
Write = tuple[str, int, object]
"""A conditional put: kind, number, content."""


class Violation(AssertionError):
    """An invariant does not hold; the message names it and the schedule."""


class Pod(NamedTuple):
    """A pod's process: it waits for the pod's lock, looks for a result, asks whether the run has
    left its machine, and publishes."""

    number: int
    spec: Spec
    token: int
    at: str
    home: int
    """Its machine, by its head."""


class Head(NamedTuple):
    """An orchestrator: what it knows, and the step that it takes next."""

    at: str = "out"
    token: int = 0
    step: int = 0
    specs: tuple[Spec, ...] = ()
    seen: tuple[tuple[Spec | None, Spec | None], ...] = ()
    """What the listing found of each pod: its spec, and the spec that its result names."""
    applied: tuple[int, ...] = ()
    logged: int = 0
    making: tuple[Spec, ...] = ()
    """Specs of this turn that are not stored yet."""
    waiting: tuple[int, ...] = ()
    running: tuple[int, ...] = ()
    ended: tuple[int, ...] = ()
    """Pods whose result is here and not applied."""


class State(NamedTuple):
    """The store, the processes, and what the lawful holder has acknowledged."""

    newest: int
    specs: tuple[Spec | None, ...]
    results: tuple[Spec | None, ...]
    """By pod: the spec that its result names."""
    logs: tuple[tuple[int, ...] | None, ...]
    """By token: what its holder logged as applied."""
    heads: tuple[Head, ...]
    pods: tuple[Pod, ...]
    late: tuple[Write, ...]
    """Requests of the dead that may still land."""
    acknowledged: tuple[int, ...]
    kills: int
    homes: tuple[int, ...] = ()
    """By token, from 1: the head that took it."""


@dataclass(frozen=True)
class Rules:
    """The bounds of an exploration, and the rule under test."""

    pods: int = 3
    slots: tuple[int, ...] = (2, 1)
    """Pods that each head keeps at work."""
    takes: int = 2
    """Times that the run is taken over in all."""
    kills: int = 0
    adopt: bool = True
    """False: a head that finds another's spec in its way ends with an error, as it once did."""
    locked: bool = True
    """False: a pod is started without waiting for the process that is at work on it."""
    fenced: bool = True
    """False: readers take the log that was written last, not the one of the highest token."""


def begin(rules: Rules) -> State:
    none = (None,) * rules.pods
    heads = (Head(),) * len(rules.slots)
    return State(0, none, none, (None,) * (rules.takes + 1), heads, (), (), (), 0)


def explore(rules: Rules) -> tuple[int, int]:
    """All schedules within the bounds: how many there are, and how many states. Raises
    Violation."""
    counted: dict[State, int] = {}
    first = begin(rules)
    stack: list[tuple[State, str, Iterator[tuple[str, State]], int]] = [
        (first, "", moves(first, rules), 0)
    ]
    try:
        while True:
            state, said, nexts, paths = stack.pop()
            for said_next, following in nexts:
                known = counted.get(following)
                if known is not None:
                    paths += known
                    continue
                stack.append((state, said, nexts, paths))
                stack.append((following, said_next, moves(following, rules), 0))
                break
            else:
                if paths == 0:
                    _check_end(state, rules)
                counted[state] = paths = max(paths, 1)
                if not stack:
                    return paths, len(counted)
                before, word, rest, sum_before = stack.pop()
                stack.append((before, word, rest, sum_before + paths))
    except Violation as found:
        schedule = [said for _, said, _, _ in stack if said] + [said]
        raise Violation(f"{found}, after: {'; '.join(dict.fromkeys(schedule))}") from None


def moves(state: State, rules: Rules) -> Iterator[tuple[str, State]]:
    """Every step that some process, or a request on its way, may take next."""
    for number, head in enumerate(state.heads):
        for said, after in _head_moves(state, number, head, rules):
            yield f"head {number} {said}", after
        if state.kills < rules.kills and head.at not in ("out", "lost", "done", "error"):
            late = state.late + _pending(head)
            dead = _with(state._replace(kills=state.kills + 1, late=late), number, Head())
            yield f"head {number} is killed", dead
    for number, pod in enumerate(state.pods):
        for said, after in _pod_moves(state, number, pod, rules):
            yield f"pod {pod.number} of token {pod.token} {said}", after
    for number, write in enumerate(state.late):
        rest = state.late[:number] + state.late[number + 1 :]
        yield f"{write[0]} {write[1]} lands late", _land(state._replace(late=rest), write, rules)


def _head_moves(state: State, number: int, head: Head, rules: Rules) -> Iterator[tuple[str, State]]:
    token = head.token
    if head.at == "out":
        if state.newest < rules.takes:
            yield (
                "looks who holds the run",
                _with(state, number, head._replace(at="take", token=state.newest)),
            )
    elif head.at == "take":
        if state.newest == token:
            held = Head(at="log", token=token + 1)
            taken = state._replace(newest=token + 1, homes=(*state.homes, number))
            yield f"takes token {token + 1}", _with(taken, number, held)
        else:
            yield "was too slow", _with(state, number, Head())
    elif head.at == "log":
        applied = _visible(state.logs, rules)
        yield (
            "reads the log",
            _with(state, number, head._replace(at="list", applied=applied, logged=len(applied))),
        )
    elif head.at == "list":
        seen = (*head.seen, (state.specs[head.step], state.results[head.step]))
        listed = head._replace(
            seen=seen, step=head.step + 1, at="list" if head.step + 1 < rules.pods else "recover"
        )
        yield f"lists pod {head.step}", _with(state, number, listed)
    elif head.at == "recover":
        yield "recovers", _with(state, number, _recovered(state, head))
    elif head.at == "make":
        yield from _make(state, number, head, rules)
    elif head.at == "turn":
        if state.newest != token:
            yield "finds that it was superseded", _with(state, number, head._replace(at="lost"))
        if head.logged < len(head.applied):
            logs = (*state.logs[:token], head.applied, *state.logs[token + 1 :])
            logged = _acknowledged(state._replace(logs=logs), head, rules)
            yield (
                "appends to the log",
                _with(logged, number, head._replace(logged=len(head.applied))),
            )
        elif len(head.applied) == rules.pods:
            yield "ends", _with(state, number, head._replace(at="done"))
        for pod in head.ended:
            ended = tuple(one for one in head.ended if one != pod)
            running = tuple(one for one in head.running if one != pod)
            applied = head._replace(ended=ended, running=running, applied=(*head.applied, pod))
            yield f"applies pod {pod}", _with(state, number, applied)
        room = rules.slots[number] - len(head.running)
        if room > 0 and head.waiting:
            yield f"starts pod {head.waiting[0]}", _started(state, number, head, rules)
        elif room > 0 and len(head.specs) < rules.pods:
            count = min(room, rules.pods - len(head.specs))
            making = ((token, head.applied),) * count
            yield (
                f"is about to make {count} specs",
                _with(state, number, head._replace(at="make", making=making)),
            )


def _recovered(state: State, head: Head) -> Head:
    """What a head derives from the store: specs up to the first that is missing, which it asks for
    by name."""
    specs: list[Spec] = []
    for listed, _ in head.seen:
        found = listed or state.specs[len(specs)]
        if found is None:
            break
        specs.append(found)
    results = [pod for pod, (_, result) in enumerate(head.seen) if result is not None]
    if any(pod >= len(specs) for pod in results):
        raise Violation("a pod has a result and one before it no spec")
    for pod in results:
        if head.seen[pod][1] != specs[pod]:
            raise Violation(
                f"the result of pod {pod} belongs to another spec and would be discarded"
            )
    logged = [pod for pod in head.applied if pod in results]
    if len(logged) < len(head.applied):
        raise Violation("the log tells of a result that is nowhere")
    applied = (*head.applied, *[pod for pod in results if pod not in head.applied])
    waiting = tuple(pod for pod in range(len(specs)) if pod not in applied)
    return head._replace(
        at="turn", seen=(), step=0, specs=tuple(specs), applied=applied, waiting=waiting, logged=-1
    )


def _make(state: State, number: int, head: Head, rules: Rules) -> Iterator[tuple[str, State]]:
    """Specs of one turn are stored in any order; they are started when all of them stand."""
    if not head.making:
        yield "has its specs stored", _with(state, number, head._replace(at="turn"))
        return
    pod = len(head.specs)
    mine = head.making[0]
    standing = state.specs[pod]
    if standing is not None and standing != mine and not rules.adopt:
        if head.token == state.newest:
            raise Violation("the lawful head ends with an error")
        yield "ends with an error", _with(state, number, head._replace(at="error"))
        return
    after = _land(state, ("spec", pod, mine), rules)
    adopted = after.specs[pod]
    assert adopted is not None
    made = head._replace(
        specs=(*head.specs, adopted), making=head.making[1:], waiting=(*head.waiting, pod)
    )
    yield f"stores spec {pod}", _with(after, number, made)


def _started(state: State, number: int, head: Head, rules: Rules) -> State:
    pod = head.waiting[0]
    if state.specs[pod] != head.specs[pod]:
        raise Violation(f"pod {pod} is trained by a spec that does not stand")
    before = _at_work(state, pod, number)
    if before and not rules.locked:
        raise Violation(f"pod {pod} is trained twice at once")
    at_work = Pod(pod, head.specs[pod], head.token, "wait" if before else "look", number)
    running = head._replace(waiting=head.waiting[1:], running=(*head.running, pod))
    return _with(state._replace(pods=tuple(sorted((*state.pods, at_work)))), number, running)


def _at_work(state: State, pod: int, home: int) -> int:
    """Processes that have a pod's lock on a machine."""
    return sum(one.number == pod and one.home == home and one.at != "wait" for one in state.pods)


def _pod_moves(state: State, number: int, pod: Pod, rules: Rules) -> Iterator[tuple[str, State]]:
    rest = state.pods[:number] + state.pods[number + 1 :]

    def at(step: str) -> State:
        return state._replace(pods=tuple(sorted((*rest, pod._replace(at=step)))))

    orphan = all(head.token != pod.token or head.at in ("out", "take") for head in state.heads)
    if orphan and pod.at == "look":
        yield "ends by itself", state._replace(pods=rest)
    if pod.at == "wait":
        if not _at_work(state, pod.number, pod.home):
            yield "has the lock", at("look")
    elif pod.at == "look":
        found = state.results[pod.number] is not None
        yield (
            ("finds a result", _told(state._replace(pods=rest), pod))
            if found
            else ("has trained", at("ask"))
        )
    elif pod.at == "ask":
        if state.newest == pod.token or state.homes[state.newest - 1] == pod.home:
            yield "may publish", at("publish")
        else:
            yield "is fenced", state._replace(pods=rest)
    else:
        published = _land(state._replace(pods=rest), ("result", pod.number, pod.spec), rules)
        yield "publishes", _told(published, pod)
        if pod.token != state.newest:  # it dies, and its request lands later or never
            yield (
                "is gone",
                state._replace(pods=rest, late=(*state.late, ("result", pod.number, pod.spec))),
            )


def _told(state: State, pod: Pod) -> State:
    """Its head hears of the result that stands, if it is still there."""
    heads = tuple(
        head._replace(ended=tuple(sorted((*head.ended, pod.number))))
        if head.token == pod.token and head.at not in ("out", "take") and pod.number in head.running
        else head
        for head in state.heads
    )
    return state._replace(heads=heads)


def _land(state: State, write: Write, rules: Rules) -> State:
    """A conditional put: what stands, stands."""
    kind, number, content = write
    if kind == "log":  # a piece more under a token of its own
        assert isinstance(content, tuple)
        return state._replace(logs=_put(state.logs, number, content))
    held = state.specs if kind == "spec" else state.results
    if held[number] is not None:
        return state
    return state._replace(**{f"{kind}s": _put(held, number, content)})


def _put(values: tuple[Any, ...], number: int, value: object) -> tuple[Any, ...]:
    return (*values[:number], value, *values[number + 1 :])


def _pending(head: Head) -> tuple[Write, ...]:
    """The request that a head has on its way when it is killed."""
    if head.at == "make" and head.making:
        return (("spec", len(head.specs), head.making[0]),)
    if head.at == "turn" and head.logged < len(head.applied):
        return (("log", head.token, head.applied),)
    return ()


def _with(state: State, number: int, head: Head) -> State:
    return state._replace(heads=(*state.heads[:number], head, *state.heads[number + 1 :]))


def _visible(logs: tuple[tuple[int, ...] | None, ...], rules: Rules) -> tuple[int, ...]:
    """What readers take for the log: that of the highest token that wrote one."""
    written = [log for log in logs if log is not None]
    if not written:
        return ()
    return written[-1] if rules.fenced else max(written, key=len)


def _acknowledged(state: State, head: Head, rules: Rules) -> State:
    """A log as it stands once a head has appended to it."""
    visible = _visible(state.logs, rules)
    if len(set(visible)) != len(visible):
        raise Violation("a result counts twice")
    if any(state.results[pod] is None for pod in visible):
        raise Violation("a result counts that is not stored")
    if visible[: len(state.acknowledged)] != state.acknowledged:
        raise Violation("what was acknowledged is gone from the log, or in another order")
    return state._replace(acknowledged=visible) if head.token == state.newest else state


def _check_end(state: State, rules: Rules) -> None:
    """Nobody has a step left: the last to take the run over has brought it to its end, unless it
    was killed."""
    lawful = [
        head
        for head in state.heads
        if head.token == state.newest and head.at not in ("out", "take")
    ]
    if lawful and lawful[0].at != "done":
        raise Violation(f"the lawful head is stuck ({lawful[0].at})")
    if lawful and (None in state.results or state.results != state.specs):
        raise Violation("a pod has no result, or one of another spec")
