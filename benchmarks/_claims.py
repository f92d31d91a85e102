"""The tables of docs/measured.md, from claims.yaml and the benchmarks' records."""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from benchmarks._records import (
    DASH,
    Named,
    Records,
    footnote,
    joined,
    list_speedups,
    name_machine,
    origin,
    percent,
    rank_kelly,
    split_record,
    spread,
    table,
    times,
)
from fintrader.config import read_yaml

UNITS = {"M": 1e-6, "k": 1e-3, "ms": 1e3}
WORDS: dict[str, Callable[..., str]] = {
    "times": times,
    "percent": percent,
    "range": spread,
    "count": lambda value: str(value or "nothing"),
}
LIBRARIES_MIB = 450
"""Memory of libraries that the target of a training's start does not count."""
SPEC = re.compile(f"({'|'.join([*WORDS, *UNITS])})?(.*)")


class Filler(string.Formatter):
    """Fills a text with figures of a record; see claims.yaml."""

    def get_field(self, field_name: str, args: Any, kwargs: Any) -> tuple[Any, str]:
        """Follow a path of names, or of places in a list."""
        value = kwargs
        for part in field_name.split("."):
            value = value[int(part) if isinstance(value, list) else part]
        return value, field_name

    def format_field(self, value: Any, format_spec: str) -> str:
        word, rest = SPEC.fullmatch(format_spec).groups()
        if word in WORDS:
            return WORDS[word](value, *map(int, rest))
        return format(value * UNITS[word] if word else value, rest)


class Row(NamedTuple):
    """A claim, its record, the target, and the figures in it: a text to fill, or a function."""

    claim: str
    record: str
    target: str
    measured: str = ""
    compute: str = ""
    options: Named | None = None

    def show(self, record: Named) -> str:
        """The figures of this record."""
        if self.measured:
            return Filler().vformat(self.measured, (), record)
        return str(globals()[f"compute_{self.compute}"](record, **(self.options or {})))


def table_of(rows: Sequence[Row], records: Records) -> str:
    """One line a row, with its record; a claim measured on several instruction sets shows each."""
    lines = []
    for row in rows:
        own, *elsewhere = split_record(records[row.record])
        said = [row.show(own)]
        said += [f"{name_machine(one['machine'])}: {row.show(one)}" for one in elsewhere]
        lines.append([row.claim, "; ".join(said), row.target, origin(records, row.record)])
    head = ["claim", "measured", "target", "record, commit, machine"]
    return table(head, lines, left=4) + footnote(records, list_records(rows))


def list_records(rows: Iterable[Row]) -> tuple[str, ...]:
    """List the records of some rows."""
    return tuple(dict.fromkeys(row.record for row in rows))


# --- figures that are more than a text ------------------------------------------------------------


def compute_optimum(record: Named, *, reward: str) -> str:
    rows = {
        name.partition("_")[0].upper(): one
        for name, one in record["figures"].items()
        if name.endswith(reward)
    }
    shares = {}
    for algo, one in rows.items():
        when = "" if "share_60s" in one else " (20 s)"
        shares[f"{algo} {{}}{when}"] = one[f"share_{20 if when else 60}s"]["mean"]
    ranked = sorted(shares.items(), key=lambda item: -item[1])
    text = ", ".join(pattern.format(percent(share)) for pattern, share in ranked)
    rates = [one["rate_ratio"]["mean"] for one in rows.values()]
    return (
        f"{text}; trade rates {min(rates):.2f} to {max(rates):.2f} of the true one;"
        f" {record['seeds']} seeds"
    )


def compute_kelly(record: Named) -> str:
    shares = ", ".join(f"{algo} {percent(one['mean'])}" for algo, one in rank_kelly(record))
    return f"{shares}; {len({run['seed'] for run in record['runs']})} seeds"


def compute_leaked(record: Named) -> str:
    found = record["figures"]
    shares = []
    for algo in ("ppo", "apg"):
        known = found[f"{algo}_share"]
        shares.append(f"{algo.upper()} {100 * min(known):.2f} to {percent(max(known), 2)}")
    shifted = max(abs(one) for algo in ("ppo", "apg") for one in found[f"{algo}_shifted"])
    return (
        f"{', '.join(shares)}; the sign alone {percent(found['sign_share'])}; shifted: at most"
        f" {percent(shifted)}"
    )


def compute_classic(record: Named, *, environment: str) -> str:
    parts = []
    for algo in ("ppo", "sac", "td3", "ddpg"):
        one = record["figures"][f"{algo}_{environment}"]
        ours, theirs = (f"{one[f'return_{side}_mean']:,.0f}" for side in ("ours", "theirs"))
        ratio = one["cpu_s_ratio"]
        arrived = one["seeds_that_got_there"]
        seeds = record["seeds"]
        late = [who for who in ("ours", "theirs") if arrived[who] < seeds]
        when = ", ".join(f"{who} got there {arrived[who]} of {seeds} times" for who in late)
        if ratio is not None:
            when = f"{ratio:.2f}"
        text = f"{algo.upper()} {ours} / {theirs} ({when})"
        parts.append(text if one["not_below"] else f"**{text}**")
    return ", ".join(parts)


RETURN_PEERS = {
    "jax": ("jax", "the same PPO in JAX, compiled before"),
    "fair_sb3": ("sb3_gsde", "Stable-Baselines3 with gSDE"),
    "fair_clean": ("clean", "a CleanRL-style loop"),
}


def compute_to_return(record: Named, *, assets: str) -> str:
    size = record["sizes"][assets]
    found = size["times"]

    def line(who: str) -> str:
        levels = [found[who][level] for level in ("10%", "25%", "50%")]
        medians = ", ".join(
            DASH if one["median"] is None else f"{one['median']:.2f}" for one in levels
        )
        return f"{medians} s ({levels[-1]['reached']} seeds to the last)"

    def lead(group: str) -> str:
        one = size["figures"][f"{group}_times_ppo_to_50%"]
        return f"**{'at least ' if one['at_least'] else ''}{times(one['times'])}**"

    rivals = [f"{title} {line(who)}: {lead(group)}" for group, (who, title) in RETURN_PEERS.items()]
    return (
        f"PPO {line('ppo')}; {'; '.join(rivals)}; TorchTrade's PPO settings {line('torchtrade')};"
        f" APG {line('apg')}. Before the clock starts: PPO {size['start_seconds']['ppo']:.1f} s"
        f" ({size['cold_seconds']:.0f} s when first compiled), JAX"
        f" {size['start_seconds']['jax']:.1f} s"
    )


def compute_thirty(record: Named) -> str:
    return (
        joined(percent(share, 0) for share in record["thirty_assets"]["shares_of_rule"])
        + " of the rule's return"
    )


def compute_ray_chaos(found: Named) -> str:
    keys = ("results_lost_or_changed", "results_doubled", "differs_from_undisturbed")
    bad = sum(found[key] for key in keys)
    lost = f"{bad} results" if bad else "nothing"
    back = dict(found["recovery_seconds_max"])
    orchestrator, head = (back.pop(key) for key in ("orchestrator", "head_and_orchestrator"))
    return (
        f"{lost} lost, doubled or changed; back in {max(back.values()):.1f} s, the orchestrator in"
        f" {orchestrator:.1f}, with the head in {head:.1f}"
    )


def compute_calibration(found: Named) -> str:
    sizes = [row["alpha"] for row in found["size"]]
    year = next(row for row in found["power"] if row["sessions"] == 250 and row["trials"] == 1)
    long = next(row for row in found["power"] if row["sessions"] == 1000 and row["cash"])
    return (
        f"without skill {percent(min(sizes))} to {percent(max(sizes))} pass at 5 %, 12 to 1,000"
        " sessions, 1 to 80 trials; an information ratio of 2 over 250 sessions"
        f" {percent(year['alpha'], 0)}, a Sharpe ratio of 3 over 1,000 {percent(long['alpha'], 0)}"
    )


def compute_search(found: Named) -> str:
    gains = [[gain / 5 for gain in list_speedups(found, target, 80)] for target in found["targets"]]
    middle = [median(one) for one in gains]
    seeds = len({run["seed"] for run in found["runs"]})
    return (
        f"{percent(min(middle), 0)} to {percent(max(middle), 0)} by target (medians"
        f" of {seeds} seeds; single seeds {percent(min(map(min, gains)), 0)} to"
        f" {percent(max(map(max, gains)), 0)})"
    )


def compute_browser(found: Named) -> str:
    slowest = max(found["rerun_ms"], key=found["rerun_ms"].__getitem__)
    return (
        f"{found['runs']:,} runs, a load of {found['load']:.1f}: {found['first_page_s']:.1f} s (the"
        f" server took {found['server_s']:.1f} s to start), again {found['again_s']:.1f} s; the"
        f" table to choose from after {found['table_s']:.1f} s (one bare table"
        f" {found['bare_first_s']:.1f} s), the chosen run's charts after"
        f" {found['chosen_run_s']:.1f} s; {found['rerun_ms'][slowest]:.0f} ms ({slowest})"
    )


def compute_deploy(found: Named) -> str:
    quick = found["quickstart"]
    many = found["hundred"]
    same = "" if quick["equal_to_the_backtest"] and many["equal_to_the_backtest"] else "**not** "
    return (
        f"{quick['decisions_a_minute']:,.0f}, {1e3 * quick['p50_cpu_seconds']:.1f} ms of the"
        f" processor; {1e3 * many['p99_seconds']:.0f} ms (median {1e3 * many['p50_seconds']:.0f}, of"
        f" the processor {1e3 * many['p50_cpu_seconds']:.0f}); the account is {same}the backtest's"
        " to the last bit"
    )


def compute_cost(record: Named, *, rows: Sequence[str], text: str, first: str = "") -> str:
    """Today's cost of some rows, the older commit's, and the one that was measured at first."""

    def show(tree: str) -> str:
        found = [_derive_costs(record["rows"], name, tree) for name in rows]
        return "; ".join(one.get("problem") or Filler().vformat(text, (), one) for one in found)

    at_first = f", at first {first}" if first else ""
    return f"{show('now')} ({record['older']}: {show('then')}{at_first})"


def _derive_costs(rows: Named, name: str, tree: str) -> dict[str, Any]:
    """A row's figures in one tree; per decision, or what else is its size, and next to other rows."""
    one = rows[name][tree]
    if "problem" in one:
        return {"problem": "cannot do it"}
    seconds = one["cpu_seconds"]
    count = one.get("decisions") or rows[name]["size"] or 1
    return {
        **one,
        "each_us": 1e6 * seconds / count,
        "look_ms": 100 * seconds,
        "times_torch": seconds / rows["torch"][tree]["cpu_seconds"],
        "times_file": (one.get("peak_mib", 0.0) - LIBRARIES_MIB) / one.get("file_mib", 1.0),
    }


CLAIMS = {
    name: [Row(**row) for row in rows]
    for name, rows in read_yaml(Path(__file__).with_name("claims.yaml")).items()
}
measured: dict[str, tuple[Callable[[Records], str], tuple[str, ...]]] = {
    name: (partial(table_of, rows), list_records(rows)) for name, rows in CLAIMS.items()
}
"""Block -> its maker, and the records it needs."""
