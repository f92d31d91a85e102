"""Blocks of README and documentation on runs: one function a block, from records to Markdown."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from benchmarks._claims import measured
from benchmarks._comparison import compare
from benchmarks._libraries import LIBRARIES
from benchmarks._records import (
    DASH,
    ROOT,
    Named,
    Records,
    cells,
    footnote,
    joined,
    p_value,
    percent,
    prose,
    rank_kelly,
    sentence,
    spread,
    table,
    times,
)
from fintrader.config import read_yaml
from fintrader.metrics import FEWEST_SESSIONS, TRADING_DAYS
from fintrader.numerals import significance
from fintrader.results.formatting import PAPER_COLUMNS, format_title, verdict_words
from fintrader.verdict.alpha import level_of_look

TITLES = read_yaml(Path(__file__).with_name("titles.yaml"))
SETS = TITLES["sets"]
RIVALS = TITLES["rivals"]
"""Ways that the plans test ours against."""


class Block(NamedTuple):
    """A generated part of a page."""

    make: Callable[[Records], str]
    records: tuple[str, ...]


BLOCKS: dict[str, Block] = {}


def block(*records: str) -> Callable[[Any], Any]:
    """Make a function of records a block of its name that needs these."""

    def add(make: Callable[[Records], str]) -> Callable[[Records], str]:
        BLOCKS[make.__name__] = Block(make, records)
        return make

    return add


# --- the quickstart -------------------------------------------------------------------------------


@block("quickstart")
def quickstart(records: Records) -> str:
    """The paper's table of the first run, and every run's share of the planted optimum."""
    runs = records["quickstart"]["runs"]
    first = runs[0]
    metrics = first["metrics"]
    rows = [
        [format_title(name).lower(), *cells(values, (key for key, _ in PAPER_COLUMNS))]
        for name, values in metrics.items()
    ]
    head = ["strategy", *(heading for _, heading in PAPER_COLUMNS)]
    about = (
        f"{metrics['ensemble']['sessions']:.0f} sessions of test window, {first['cost_bps']:g} bps"
        f" a trade, an ensemble of {first['ensemble_size']} chosen from {first['trials']} trials:"
    )
    shares = [run["share_of_oracle"]["ensemble"] for run in runs]
    said = (
        f"The ensemble reached {percent(shares[0], 0)} of the log growth of an oracle, which knows"
        " the signal's states"
    )
    if len(runs) > 1:
        seeds = joined(f"{run['seed']}" for run in runs[1:])
        said += f" (with seeds {seeds}: {joined(percent(share, 0) for share in shares[1:])})"
    said += f". Verdict: *{verdict_words(first['verdict'])}.*"
    seconds = sorted(run["seconds"] for run in runs if run["seconds"])
    if seconds:
        took = " to ".join(f"{end:.0f}" for end in dict.fromkeys((seconds[0], seconds[-1])))
        busy = max(run["load"] for run in runs)
        said += (
            f" A run took {took} s, installation not counted, on a machine with a load of up to"
            f" {busy:.1f}."
        )
    capital = {float(usd): value for usd, value in first["sharpe_by_capital_usd"].items()}
    least = min(capital)
    more = [
        f"{usd / least:.0f} times the capital {value:.2f}"
        for usd, value in capital.items()
        if usd > least
    ]
    said += f" The ensemble's Sharpe ratio is {capital[least]:.2f}, with {joined(more)}."
    return f"{about}\n\n{table(head, rows)}\n\n{prose(said)}\n\n{sentence(records, 'quickstart')}"


# --- real bars ------------------------------------------------------------------------------------

REAL = ("real", "real_noise")


@block(*REAL)
def real(records: Records) -> str:
    """Active figures of every set that was walked forward, over its seeds, and a summary of
    them."""
    sets = _read_sets(records)
    rows = []
    for title, seeds in sets.items():
        for key, words in TITLES["who"].items():
            known = [found[key] for found in seeds if found.get(key)]
            if known:
                rows.append([title, words, *_active(known, seeds[0])])
    many = max(len(seeds) for seeds in sets.values())
    band = "(95 %)"
    each = "each ensemble"
    if many > 1:
        band = f", median of {many} seeds (95 %, the outermost of them)"
        each = "the first seed's ensembles (another seed is another look)"
    head = ["bars", "who", f"active return a year{band}", "information ratio", "folds not below"]
    head += ["Sharpe, its / equal weight's", "invested"]
    parts = [table(head, rows, left=2)]
    verdicts = [
        prose(f"*{title}*: {seeds[0]['verdict'].partition(').')[0]}).", item=True)
        for title, seeds in sets.items()
        if seeds[0].get("verdict")
    ]
    if verdicts:
        parts += [f"The verdict on {each}, by the ledger of its runs alone:", "\n".join(verdicts)]
        parts += [prose(line) for line in _explain_levels("".join(verdicts))]
    return "\n\n".join([*parts, prose(_summarise_real(sets)), sentence(records, *REAL)])


@block(*REAL)
def luck(records: Records) -> str:
    """The search with the best Sharpe ratio of those that may be luck, as it would have been
    reported."""

    def rank(title: str) -> tuple[bool, float]:
        found = walked[title]
        return verdict_words(found["verdict"]).startswith("Not"), found["ensemble"]["sharpe"]

    walked = {
        title: found
        for title, found in _read_real_bars(records).items()
        if found["ensemble"]["sharpe"]
    }
    title = max(walked, key=rank)
    ours = walked[title]["ensemble"]
    equal = walked[title]["equal_weight"]
    words, _, rest = walked[title]["verdict"].partition(": ")
    claim, _, test = rest.partition(" (")
    tested = re.match(r"(p . [\d.]+) .*?(\d+ trials)", test)
    text = (
        f"**{title}: Sharpe ratio {ours['sharpe']:.2f},"
        f" {percent(ours['cumulative_return'], 1, '+')} in {ours['sessions']} sessions.** Equal"
        f" weights made {equal['sharpe']:.2f} and {percent(equal['cumulative_return'], 1, '+')}."
        f" Verdict: *{words}: {claim}* ({tested[1]}, the best of {tested[2]})."
    )
    return f"{prose(text)}\n\n{sentence(records, 'real')}"


def _explain_levels(verdicts: str) -> list[str]:
    """State the levels at which verdicts were recorded where a first look has another one today."""
    today = significance(level_of_look(1))
    # Verdicts of before stated levels as shares, and looks as words.
    found = re.findall(r"at\s+a\s+level\s+of\s+([\d.]+),\s+(\w+)\s+look", verdicts)
    stated = {significance(float(level)): look for level, look in sorted(found, reverse=True)}
    if not stated or today in stated:
        return []
    levels = joined(f"{level} at a {look} look" for level, look in stated.items())
    return [f"The level was {levels}; today a first look has {today}."]


@block(*REAL)
def real_bars(records: Records) -> str:
    """The ensemble on each set of real bars and its verdict, in a line."""
    rows = []
    for title, found in _read_real_bars(records).items():
        returned, ratio, _, sharpes, _ = _active([found["ensemble"]], found)
        rows.append([title, returned, ratio, sharpes, found["verdict"].partition(": ")[0]])
    head = [
        "bars",
        "beyond, a year (95 % interval)",
        "information ratio",
        "Sharpe, its / equal weight's",
    ]
    return f"{table([*head, 'verdict'], rows)}\n\n{sentence(records, 'real')}"


def _read_sets(records: Records) -> dict[str, list[Named]]:
    """Figures of each set by its title, seed by seed; later seeds look at the same window again."""
    sets = {**records["real"]["sets"], **records["real_noise"]["sets"]}
    seeds = {}
    for key in sorted(sets, key=lambda key: int(key.partition("/")[2])):
        seeds.setdefault(key.partition("/")[0], []).append(sets[key])
    return {title: seeds[name] for name, title in SETS.items() if name in seeds}


def _read_real_bars(records: Records) -> dict[str, Named]:
    """The first seed of each set of real bars that has a verdict, by its title."""
    real = [SETS[name] for name in ("us14", "daily", "n100")]
    first = {title: seeds[0] for title, seeds in _read_sets(records).items()}
    return {t: found for t, found in first.items() if t in real and found.get("verdict")}


def _scale(sessions: int) -> float:
    """Factor of a year's figures: those of less than a quarter are told of the window itself."""
    return sessions / TRADING_DAYS if sessions < FEWEST_SESSIONS else 1.0


def _active(seeds: Sequence[Named], found: Named) -> list[str]:
    """Cells of a row: medians over seeds, where there are several; `found` has the set's window."""
    sessions = found["ensemble"]["sessions"]
    scale = _scale(sessions)
    made = [scale * seed["active_return"] for seed in seeds]
    text = percent(median(made), 1, "+")
    if max(made) - min(made) > 1e-9:
        text += f", seeds {100 * min(made):+.1f} to {100 * max(made):+.1f}"
    bands = [seed["interval"] for seed in seeds if seed.get("interval")]
    if bands:
        low, high = min(low for low, _ in bands), max(high for _, high in bands)
        text += f" ({100 * scale * low:+.1f} to {100 * scale * high:+.1f})"
    if scale != 1.0:
        text += f" in {sessions} sessions"
    folds = sorted({seed["folds_not_below"] for seed in seeds if seed.get("folds_not_below")})
    if len(folds) > 1:
        folds = [f"{folds[0].partition(' ')[0]} to {folds[-1]}"]
    ratio, sharpe, invested = (
        _median(seed[name] for seed in seeds)
        for name in ("information_ratio", "sharpe", "invested_share")
    )
    sharpes = (sharpe, found["equal_weight"]["sharpe"])
    return [
        text,
        DASH if ratio is None else f"{ratio:+.2f}",
        *(folds or [DASH]),
        " / ".join(DASH if one is None else f"{one:.2f}" for one in sharpes),
        percent(invested),
    ]


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def _summarise_real(sets: Mapping[str, Sequence[Named]]) -> str:
    """The ensemble beside ridge where a signal was planted, and the search without information;
    medians over seeds."""
    beside = []
    free = []
    for title, seeds in sets.items():
        ours, theirs, nothing = (
            _median(found[name]["active_return"] for found in seeds if found.get(name))
            for name in ("ensemble", "ridge", "without_information")
        )
        if "planted" in title and theirs is not None:
            both = f"{percent(ours, 1, '+')} where ridge made {percent(theirs, 1, '+')}"
            beside.append(f"{both} ({title})")
        if nothing is not None:
            made = _scale(seeds[0]["ensemble"]["sessions"]) * nothing
            free.append(f"{percent(made, 1, '+') if abs(made) >= 5e-5 else 'nothing'} ({title})")
    said = [f"Beyond equal weights the ensemble made {joined(beside)}."] if beside else []
    said += [f"Without information the same search made {joined(free)}."] if free else []
    noise = [found["ensemble"] for found in sets.get(SETS["noise"], ())]
    if noise:
        near = sum(found["within_10_bps"] for found in noise) / len(noise)
        made = percent(median(one["active_return"] for one in noise), 1, "+")
        said.append(
            f"From noise for features the ensemble made {made}, within 10 basis points of equal"
            f" weights in {percent(near, 0)} of folds."
        )
    return " ".join(said)


# --- the tournament -------------------------------------------------------------------------------


@block("schedules")
def schedules(records: Records) -> str:
    """Shares of the optimum by ways to spend the same number of environment steps."""
    return _show_experiment(records, "schedules")


@block("schedules")
def halving_first(records: Records) -> str:
    """The first record's halving against ways that the second record left out: an analysis after
    the fact."""
    rivals = TITLES["left_out"]
    ours = "halve_anneal"
    found = compare(records["schedules"]["rows"]["wide_noisy"], ours, rivals)
    rows = []
    for key in rivals:
        beside = found["against"][key]
        rows.append(
            [
                TITLES["ways"][key],
                f"{beside['median_difference']:+.2f}",
                f"{beside['wins']} of {found['markets']}",
                p_value(beside["p"]),
                p_value(beside["p_holm"]),
            ]
        )
    head = ["way", "halving's lead, median", "halving ahead in", "p", f"p, Holm of {len(rivals)}"]
    median_share = found["ways"][ours]["median"]
    about = f"Halving (median {median_share:.2f}) less the other way, market by market:"
    return f"{about}\n\n{table(head, rows)}\n\n{sentence(records, 'schedules')}"


@block("halving")
def halving(records: Records) -> str:
    """Shares of the optimum by halving and by other ways, on fresh markets."""
    return _show_experiment(records, "halving")


def _show_experiment(records: Records, name: str) -> str:
    record = records[name]
    steps = record["env_steps"] / 1e6
    parts = []
    for question, title in TITLES["questions"].items():
        known = len(record["rows"].get(question, []))
        found = record["questions"].get(question)
        if found is not None:
            about = f"{title}. {found['markets']} markets, {steps:.2f} M env-steps each way."
            parts += [prose(about), _show_ways(found), prose(_compare_ways(question, found))]
        elif known:
            parts.append(
                prose(f"{title}: {known} markets are measured, too few for figures by the plan.")
            )
    return "\n\n".join([*parts, sentence(records, name)])


def _show_ways(found: Named) -> str:
    rows = []
    for key, title in TITLES["ways"].items():
        if key not in found["ways"]:
            continue
        one = found["ways"][key]
        beside = found["against"].get(key)
        cpu = f"{one['cpu_seconds']:.0f}" if "cpu_seconds" in one else ""
        row = [title, f"{one['median']:.2f}", f"{one['mean']:.2f}", percent(one["below_half"], 0)]
        row += (
            [cpu, "", "", ""]
            if beside is None
            else [
                cpu,
                f"{beside['wins']} of {found['markets']}",
                p_value(beside["p"]),
                p_value(beside["p_holm"]) if "p_holm" in beside else "",
            ]
        )
        rows.append(row)
    head = ["way", "share of the optimum, median", "mean", "below half", "CPU s"]
    return table([*head, "ours ahead in", "p", "p, Holm"], rows)


def _compare_ways(question: str, found: Named) -> str:
    """The rivals that ours is ahead of and behind beyond chance, and the bar of the plan."""
    against = found["against"]
    tested = [key for key in RIVALS if "p_holm" in against.get(key, {})]
    known = [key for key in tested if against[key]["p_holm"] < 0.05]
    ahead = [RIVALS[key] for key in known if against[key]["median_difference"] > 0]
    behind = [RIVALS[key] for key in known if against[key]["median_difference"] < 0]
    said = [f"Ours is ahead of {joined(ahead)}."] if ahead else []
    said += [f"Ours is behind {joined(behind)}."] if behind else []
    if not known:
        said = ["Ours is not distinguishable from any of its rivals at 5 %."]
    bar = "seeds" if question == "tuned_noisy" else "pbt"
    if bar in known:
        return " ".join(said)
    state = "is not worse" if against[bar]["p_not_worse"] < 0.05 else "is not shown to be no worse"
    return " ".join([*said, f"Ours {state} than {RIVALS[bar]} by more than 0.03 of the optimum."])


@block("pendulum")
def pendulum(records: Records) -> str:
    """Test returns on Pendulum of the tournament and of seeds."""
    record = records["pendulum"]
    rows = []
    for way, title in TITLES["pendulum"].items():
        runs = record["runs"][way]
        cells_of_way = [title]
        for policy in ("ensemble", "best"):
            returns = sorted(run["returns"][policy] for run in runs)
            cells_of_way.append(f"{median(returns):.0f} ({returns[0]:.0f} to {returns[-1]:.0f})")
        rows.append([*cells_of_way, f"{median(run['cpu_seconds'] for run in runs):.0f}"])
    seeds = len(runs)
    head = ["way", "ensemble, median (range)", "best pod, median (range)", "CPU s"]
    about = f"{seeds} seeds, mean returns in 100 test episodes; higher is better."
    return f"{about}\n\n{table(head, rows)}\n\n{sentence(records, 'pendulum')}"


# --- pages of the documentation -------------------------------------------------------------------


@block("paper_rows")
def paper_rows(records: Records) -> str:
    """Our tournament, RLlib's PPO and the index in the paper's protocol."""
    record = records["paper_rows"]
    rows = []
    for way, title in TITLES["paper_rows"].items():
        found = record["rows"][way]
        ends = found.get("range") or [found["cumulative_return"]] * 2
        runs = [one[way] for one in record["runs"]]
        spent = median(one["cpu_seconds"] for one in runs) if way != "index" else None
        rows.append(
            [
                title,
                percent(found["cumulative_return"], sign="+"),
                f"{percent(ends[0], sign='+')} to {percent(ends[1], sign='+')}",
                percent(found["max_drawdown"]),
                f"{found['sharpe']:.1f}",
                DASH if spent is None else f"{spent:,.0f}",
                *(_show_time(found, target) for target in ("1.0", "index")),
            ]
        )
    head = ["median of the seeds", "cumulative return", "of all seeds", "drawdown", "Sharpe"]
    head += ["CPU s", "CPU s until nothing is lost", "until the index is reached"]
    seeds = len(record["runs"])
    about = f"{seeds} seeds, a tournament of {record['plan']['pods']} pods each."
    return f"{about}\n\n{table(head, rows)}\n\n{sentence(records, 'paper_rows')}"


def _show_time(found: Named, target: str) -> str:
    """The median seconds of the seeds that reached a target."""
    known = [one for one in found.get("seconds_to", {}).get(target, []) if one is not None]
    return f"{median(known):.0f}" if known else DASH


@block("kelly")
def kelly(records: Records) -> str:
    """The share of Kelly's growth rate that each algorithm reached."""
    record = records["kelly"]
    rows = [
        [algo, percent(one["mean"]), f"{percent(one['min'])} to {percent(one['max'])}"]
        for algo, one in rank_kelly(record)
    ]
    share = f"share of the best growth rate after {record['seconds']:g} CPU-s"
    head = ["algorithm", share, "range over the seeds"]
    return f"{table(head, rows)}\n\n{sentence(records, 'kelly')}"


@block("env")
def factored(records: Records) -> str:
    """The speed of a policy on factored observations over that on flat ones."""
    found = records["env"]["factored_policy"]
    inference = found["inference"]
    rows = [
        [
            f"rollouts of {found['accounts']:,} accounts, decisions alone",
            times(inference["factored_times_flat"]),
        ],
        [
            "the same with the environment's step",
            times(inference["env_and_factored_times_env_and_flat"]),
        ],
    ]
    for one in list(found["training"].values())[::3]:
        what = f"training, {one['rows']:,} different rows in {found['minibatch_samples']:,} samples"
        rows.append([what, times(one["factored_times_flat"])])
    head = ["", "times as fast as the same policy on flat observations"]
    return f"{table(head, rows)}\n\n{sentence(records, 'env')}"


HIGHEST = 1.1


def list_steep(rows: Iterable[Named]) -> list[str]:
    """The works with an exponent above `HIGHEST`, and its reason where it is known."""
    steep = []
    for row in rows:
        slopes = {
            words: row[f"{unit}_exponent"] or 0.0
            for unit, words in (("cpu_seconds", "time"), ("mib", "memory"))
        }
        above = [f"{words} {slope:.2f}" for words, slope in slopes.items() if slope > HIGHEST]
        if above:
            name = f"{row['stage']}: {row['part']}, by {row['axis']}"
            own = row.get("user_seconds_exponent") or math.inf
            if name in TITLES["reasons"]:
                reason = TITLES["reasons"][name]
            elif slopes["memory"] <= HIGHEST and own <= HIGHEST:
                reason = (
                    f"the program's own time grows by {own:.2f}; the rest is the system's, for new"
                    " memory and files"
                )
            else:
                reason = "no reason is known"
            steep.append(f"{name} ({joined(above)}): {reason}")
    return steep


@block("growth")
def growth(records: Records) -> str:
    """CPU time and memory of every stage by size, and what grows faster than linearly."""
    rows = []
    for row in records["growth"]["rows"]:
        points = row["points"]
        sizes = "; ".join(f"{int(size):,}" for size in points)
        cells = [f"{row['stage']}: {row['part']}", f"{sizes} {row['axis']}"]
        for unit in ("cpu_seconds", "mib"):
            slope = row[f"{unit}_exponent"]
            cells.append("; ".join(f"{float(f'{one[unit]:.2g}'):,g}" for one in points.values()))
            cells.append(DASH if slope is None else f"{slope:.2f}")
        rows.append(cells)
    head = ["work", "size", "CPU-s", "exponent", "MiB", "exponent"]
    text = f"{table(head, rows, left=2)}\n\n{sentence(records, 'growth')}"
    steep = [prose(f"{line}.", item=True) for line in list_steep(records["growth"]["rows"])]
    if steep:
        text += f"\n\nSteeper than {HIGHEST}:\n\n" + "\n".join(steep)
    return text


@block("gpu")
def gpu(records: Records) -> str:
    """Training and stepping on a GPU."""
    record = records["gpu"]
    rows = []
    for name, one in record["training"].items():
        algorithm, _, accounts = name.rpartition("_")
        counts = [f"{one[key]:,.0f}" if key in one else DASH for key in ("launches", "waits")]
        busy = percent(one["busy"], 0) if "busy" in one else DASH
        memory = f"{one['memory_gib']:.1f} GiB"
        words = algorithm.upper().replace("_MLP", ", an MLP")
        rows.append([words, f"{int(accounts):,}", f"{one['rate']:,.0f}", *counts, busy, memory])
    for kind in ("flat_float32", "flat_bfloat16", "factored"):
        for accounts in (1024, 16384, 262144, 1048576):
            rate = record["env"][f"env_{kind}_{accounts}_steps_per_second"]
            words = f"environment alone, {kind.replace('_', ', ')}"
            rows.append([words, f"{accounts:,}", f"{rate:,.0f}", *[DASH] * 4])
    head = ["", "accounts", "env-steps/s", "launches", "waits", "GPU busy", "memory"]
    drift = percent(record["drift"], 1)
    said = f"After ten updates two equal trainings were {drift} of their way apart."
    return f"{table(head, rows)}\n\n{said} {sentence(records, 'gpu')}"


@block("borrowed")
def borrowed(records: Records) -> str:
    """Other libraries, their scripts, and the speed of their loops here and on an environment of
    theirs."""
    record = records["borrowed"]
    rows = []
    for name, library in LIBRARIES.items():
        found = record["libraries"][name]
        code = (ROOT / "examples" / f"{library.script}.py").read_text().splitlines()
        lines = sum(bool(line.strip()) and not line.startswith("#") for line in code)
        rates = [
            f"{found[key]['median']:,.{digits}f} ({spread(found[key]['range'], digits)})"
            for key, digits in (("trading", 0), ("reference", 0), ("times", 2))
        ]
        title = f"{library.title} {found['versions'].get(library.package, '')}".strip()
        script = f"`{library.script}`, {lines}"
        loop = f"{library.loop}; {library.reference}"
        rows.append([title, script, library.through, loop, *rates, library.limitation])
    head = ["library", "script, lines", "through", "loop; its reference", "steps/s here"]
    head += ["in the reference", "times", "limitation"]
    said = (
        f"Env-steps a CPU-second with the library's updates, {record['accounts']} accounts on one"
        f" thread: the median of {record['rounds']} rounds in turn, and their range. An observation"
        f" of the trading market has {record['observation_width']} numbers and an action"
        f" {record['assets']}; a pendulum's 3 and 1, of point chasing 8 and 2."
    )
    return "\n\n".join([table(head, rows, left=8), prose(said), sentence(records, "borrowed")])


@block("tasks")
def tasks(records: Records, agents: Mapping[str, str] = TITLES["agents"]) -> str:
    """How far agents went from the best rule to the optimum of each task."""
    figures = records["tasks"]["figures"]
    found_in = [found for name, found in figures.items() if name != "env_steps"]
    agents = {
        agent: title
        for agent, title in agents.items()
        if any(f"{agent}_closed" in found for found in found_in)
    }
    rows = []
    for name, found in figures.items():
        if name == "env_steps":
            continue
        closed = [found.get(f"{agent}_closed") for agent in agents]
        rows.append([f"`{name}`", *map(_show_closed, closed)])
    said = (
        "0: as good as the best simple rule; 1: the optimum. Median of five seeds (lowest) after"
        f" {figures['env_steps']:,} decisions."
    )
    if "apg" in agents:
        said += f" {DASH}: APG needs the reward's gradient; limit orders have none"
        if "ridge" in agents:
            said += (
                "; ridge needs features to forecast from, so only `signals` has it, and trades at the"
                " best rule's rate there"
            )
        said += "."
    return f"{said}\n\n{table(['', *agents.values()], rows)}\n\n{sentence(records, 'tasks')}"


@block("env", "training")
def speed_short(records: Records) -> str:
    """The environment and training next to other libraries, in three lines."""
    env, training = records["env"], records["training"]
    jax = f"{times(training['times_jax_4096_100'])} the same PPO in JAX"
    jax += f" (64 accounts, 10 stocks: {times(training['times_jax_64_10'])})"
    rows = [
        ["environment, 4,096 accounts", env["env_only_steps_per_second"]],
        ["training PPO, MLP, 256 accounts", training["mlp_ours_steps_per_second"]],
        ["training PPO, 4,096 accounts", training["default_4096_steps_per_second"]],
    ]
    peers = [f"{times(env['times_finrl'], 0)} FinRL"]
    peers += [f"{times(training['mlp_times_sb3'])} Stable-Baselines3", jax]
    rows = [[what, f"{rate:,.0f}", peer] for (what, rate), peer in zip(rows, peers, strict=True)]
    head = ["100 stocks, one CPU thread", "decisions a second", "speed"]
    names = ("env", "training")
    said = sentence(records, *names).removesuffix(footnote(records, names))
    return f"{table(head, rows)}\n\n{said}"


def _show_closed(closed: Named | None) -> str:
    """Cell with the median (least) over seeds, or the only value."""
    if closed is None:
        return DASH
    least = f" ({closed['least']:.2f})" if "least" in closed else ""
    return f"{closed['median']:.2f}{least}"


EXECUTION_RULES = ("next open", "TWAP", "VWAP", "Almgren-Chriss", "limit")


@block("executor")
def executor(records: Records) -> str:
    """Shortfalls of rules and agent in each set, and the agent against its rival."""
    parts = []
    sets = {}
    for key, cell in records["executor"]["cells"].items():
        name, _, costs = key.partition(", ")
        sets.setdefault(name, []).append((costs, cell))
    for name, found in sets.items():
        about = found[0][1]
        days = about["agent_against_rival"]["all"]["days"]
        parts.append(f"**{SETS[name]}**: {about['orders']:,} orders each way on {days} test days.")
        rows = [_show_cell(costs, cell) for costs, cell in found]
        parts += [table(_AGAINST_HEAD, (row[:6] for row in rows))]
        parts += [table(_SHORTFALL_HEAD, (row[:1] + row[6:] for row in rows))]
    return "\n\n".join([*parts, sentence(records, "executor")])


_AGAINST_HEAD = (
    *("half-spread, ticks", "agent less rival, bps (95 %)", "p, Holm", "names held out"),
    *("its form", "rival"),
)
_SHORTFALL_HEAD = ("shortfall, bps", *EXECUTION_RULES, "agent")


def _show_cell(costs: str, cell: Named) -> list[str]:
    """Columns of both tables for a pair of half-spread and fill margin."""
    mean = cell["shortfall_bps"]
    whole, held_out = (cell["agent_against_rival"][key] for key in ("all", "held_out"))
    return [
        costs.removeprefix("half-spread ").replace(" 1 ticks", " 1 tick"),
        f"{whole['bps']:+.2f} ({whole['low']:+.2f} to {whole['high']:+.2f})",
        p_value(whole["p_holm"]),
        f"{held_out['bps']:+.2f}",
        joined(dict.fromkeys(cell["forms"])),
        joined(dict.fromkeys(rival.replace(" ", ": ", 1) for rival in cell["rivals"])),
        *(f"{mean[rule]:.2f}" for rule in (*EXECUTION_RULES, "agent")),
    ]


@block("execution")
def execution(records: Records) -> str:
    """The targets of the walk-forwards on minutes, carried out in four ways."""
    parts = []
    for key, found in records["execution"]["sets"].items():
        title = SETS[key.partition("/")[0]]
        head = [f"{title}, {found['sessions']} sessions", *_EXECUTION_HEAD]
        rows = [[way, *_show_way(one)] for way, one in found["ways"].items()]
        parts.append(table(head, rows))
    return "\n\n".join([*parts, sentence(records, "execution")])


_EXECUTION_HEAD = (
    *("return a year", "Sharpe", "less next open, a year (95 %)"),
    *("slippage, bps", "costs, bps", "fills"),
)


def _show_way(one: Named) -> list[str]:
    low, high = one["interval"]
    less = f"{100 * one['less_next_open']:+.2f} % ({100 * low:+.2f} to {100 * high:+.2f})"
    return [
        *(
            f"{100 * one['annual_return']:+.1f} %",
            f"{one['sharpe']:.2f}",
            less if any(one["interval"]) else "–",
        ),
        *(f"{one['slippage_bps']:+.2f}", f"{one['cost_bps']:.1f}", f"{one['fills']:,}"),
    ]


@block(*REAL)
def tasks_real(records: Records) -> str:
    """The agents on real bars, next to ridge and two rules."""
    compared = ["ensemble", "ridge", "vol_targeted", "buy_and_hold"]
    rows = [
        [title, *(_active([found[name]], found)[0] for name in compared)]
        for title, found in _read_real_bars(records).items()
    ]
    head = ["beyond equal weights, a year (95 %)", "agents", "ridge", "volatility target"]
    return f"{table([*head, 'buy and hold'], rows)}\n\n{sentence(records, 'real')}"


@block("tasks")
def tasks_short(records: Records) -> str:
    """PPO and APG, next to Stable-Baselines3's PPO."""
    short = tasks(records, {name: TITLES["agents"][name] for name in ("ppo", "apg", "sb3")})
    return short.removesuffix(footnote(records, ("tasks",)))


BLOCKS |= {name: Block(make, names) for name, (make, names) in measured.items()}


def figures_of(name: str, records: Records) -> str:
    """The Markdown of a block. Raises KeyError with what is missing."""
    return BLOCKS[name].make(records)
