"""The tables of docs/measured.md: one row a claim, from the benchmarks' records."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
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


class Row(NamedTuple):
    """A claim, its record, the figures in it, and the target."""

    claim: str
    record: str
    measured: Callable[[Any], str]
    target: str


def table_of(rows: Sequence[Row], records: Records) -> str:
    """One line a row, with its record; a claim measured on several instruction sets shows each."""
    lines = []
    for row in rows:
        own, *elsewhere = split_record(records[row.record])
        said = [row.measured(own)]
        said += [f"{name_machine(one['machine'])}: {row.measured(one)}" for one in elsewhere]
        lines.append([row.claim, "; ".join(said), row.target, origin(records, row.record)])
    head = ["claim", "measured", "target", "record, commit, machine"]
    return table(head, lines, left=4) + footnote(records, dict.fromkeys(row.record for row in rows))


# --- the environment, data, and training ----------------------------------------------------------


def _millions(per_second: float) -> str:
    return f"{per_second / 1e6:.2g}"


def _env_speed(env: Named) -> str:
    ranges = env["ranges"]
    return (
        f"{_millions(env['env_only_steps_per_second'])} M steps/s: {times(env['times_finrl'], 0)}"
        f" FinRL ({spread(ranges['times_finrl'], 0)}), {times(env['times_elegantrl_shipped'], 0)}"
        f" ElegantRL as shipped, {times(env['times_elegantrl_repaired'])}"
        f" ({spread(ranges['times_elegantrl_repaired'], 0)}) with its actions and sales repaired,"
        f" {times(env['times_torchtrade_fractional_4096'])} TorchTrade's contract"
        f" ({times(env['times_torchtrade_tuned_fractional_4096'])} our tuning of it); every account"
        f" beginning by itself: {times(env['single_starts_times_finrl'], 0)} FinRL"
    )


def _env_roofline(env: Named) -> str:
    return (
        f"{env['share_of_copy_roofline']:.2f}; {env['single_starts_share_of_copy_roofline']:.2f}"
        f" (the roofline is {_millions(env['roofline_steps_per_second'])} M steps/s at"
        f" {env['copy_gb_per_second']:.1f} GB/s)"
    )


def _env_decisions(env: Named) -> str:
    found = env["decisions_per_second"]["80"]["64"]
    kept = env["interval_times_interval_1"]["interval_30_times_interval_1_80_stocks_64_accounts"]
    return (
        f"{'; '.join(_millions(found[bars]) for bars in ('1', '5', '30'))} M/s, {kept:.2f} of a"
        " decision a bar"
    )


def _env_options(env: Named) -> str:
    costs, parts = (
        env[f"{name}_times_plain_4096_accounts_interval_1"] for name in ("costs", "fractional")
    )
    one, many = (env["decisions_per_second"]["100"][accounts]["1"] for accounts in ("1", "16384"))
    return f"{costs:.2f} and {parts:.2f}; {_millions(one)}; {_millions(many)} M steps/s"


def _training(found: Named) -> str:
    sizes = ("64", "256", "1024", "4096")
    rates = "; ".join(f"{found[f'default_{size}_steps_per_second'] / 1e3:.1f}" for size in sizes)
    return f"{rates} thousand steps/s; 4,096 against 64: {times(found['default_4096_times_64'])}"


def _training_peers(found: Named) -> str:
    sb3, clean = (f"{times(found[key])}" for key in ("mlp_times_sb3", "mlp_times_clean"))
    ranges = found["ranges"]
    return (
        f"{sb3} Stable-Baselines3 ({spread(ranges['mlp_times_sb3'])}), {clean} a CleanRL-style loop"
        f" ({spread(ranges['mlp_times_clean'])}), both tuned"
    )


def _training_jax(found: Named) -> str:
    sizes = {"256_100": "256 × 100", "256_10": "256 × 10", "64_10": "64 × 10"}
    sizes |= {"4096_100": "4,096 × 100"}
    parts = [
        f"{words} {times(found[name])} ({spread(found['ranges'][name])})"
        for name, words in ((f"times_jax_{size}", words) for size, words in sizes.items())
    ]
    return "; ".join(parts)


MICRO = {
    "mlp_other_products": "MLP with the other choice of oneDNN or MKL",
    "mlp_plain_adam": "with Adam a tensor at a time",
    "default_steps_by_torch": "the default with gradient steps by torch's operations",
}


def _micro(found: Named) -> str:
    return ", ".join(f"{words} {found[f'micro_{name}']:.2f} ×" for name, words in MICRO.items())


def _build(found: Named) -> str:
    paper = found["paper"]
    first, second = paper["first"], paper["second"]
    return (
        f"{first['seconds']:.0f} s ({first['cpu_seconds']:.0f} CPU-s,"
        f" {first['system_seconds']:.0f} of them the system's, which takes"
        f" {paper['fresh_gib_seconds']:.1f} for a GiB of new memory), {first['peak_gib']:.2f} GiB;"
        f" {times(found['polars']['times_faster'])} polars on the same work; again"
        f" {1e3 * second['seconds']:.0f} ms, loading {1e3 * second['load_seconds']:.0f} ms"
    )


def _day_added(found: Named) -> str:
    csv, parquet = (found["appended"][kind] for kind in ("csv", "parquet"))
    return (
        f"each a CSV {csv['appended_seconds']:.1f} s, {csv['appended_chunks']} chunks; in one"
        f" Parquet file {parquet['appended_seconds']:.1f} s, {parquet['appended_chunks']} chunks"
    )


def _clean(found: Named) -> str:
    rate = found["clean_and_align"]["rows_per_second"] / 1e6
    return f"{rate:.1f} M rows/s; {times(found['finrl_way']['times_faster'], 0)}"


SPEED = (
    Row(
        "environment at its default options, 100 stocks, 4,096 accounts in 16 groups, one thread",
        "env",
        _env_speed,
        f"250 ×, {DASH}, 25 ×, 8 ×",
    ),
    Row(
        "its share of the copy roofline; every account beginning by itself",
        "env",
        _env_roofline,
        "0.6",
    ),
    Row(
        "64 accounts, 80 stocks: a decision a bar; every 5; every 30 bars",
        "env",
        _env_decisions,
        "0.3 M/s at 30, 0.4 of a decision a bar",
    ),
    Row(
        "impact, own spread and least commission, and fractions, of plain; one account; 16,384"
        " accounts",
        "env",
        _env_options,
        "0.7",
    ),
    Row(
        "environment and an MLP policy, one thread",
        "env",
        lambda env: f"{env['env_and_policy_steps_per_second'] / 1e3:,.0f} thousand steps/s",
        DASH,
    ),
    Row(
        "a policy on factored observations over the same on flat ones",
        "env",
        lambda env: times(env["factored_policy"]["inference"]["factored_times_flat"]),
        "3 ×",
    ),
    Row(
        "one account through `gymnasium.make` over FinRL's",
        "env",
        lambda env: times(env["single_times_finrl"]),
        "2 ×",
    ),
    Row(
        "default PPO, 100 stocks × 8 features, one thread, updates included: 64; 256; 1,024; 4,096"
        " accounts",
        "training",
        _training,
        "30 k at 256, 80 k at 4,096; 1.5 ×",
    ),
    Row(
        "MLP 128-128, the same everything, in our environment",
        "training",
        _training_peers,
        "3 ×, 2 ×",
    ),
    Row(
        "default PPO beside the same algorithm in JAX, accounts × stocks, both compiled before",
        "training",
        _training_jax,
        "1 ×, 0.8 ×, 0.8 ×, 1 ×",
    ),
    Row("the rate of training with one thing changed, 256 accounts", "training", _micro, DASH),
    Row(
        "paper-sized build: 152 tickers, 528,030 minutes, 8 features",
        "data_build",
        _build,
        "45 CPU-s, 1 GiB, 1 ×",
    ),
    Row("a day added to the bars of 500 symbols", "data_build", _day_added, "5 s, 500 chunks"),
    Row(
        "clean and align; the paper's eight features against stockstats",
        "data_build",
        _clean,
        "2 M rows/s",
    ),
)


# --- what agents learn ----------------------------------------------------------------------------


def _optimum(record: Named, *, reward: str) -> str:
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


def _kelly(record: Named) -> str:
    shares = ", ".join(f"{algo} {percent(one['mean'])}" for algo, one in rank_kelly(record))
    return f"{shares}; {len({run['seed'] for run in record['runs']})} seeds"


def _leaked(record: Named) -> str:
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


def _classic(record: Named, *, environment: str) -> str:
    parts = []
    for algo in ("ppo", "sac", "td3", "ddpg"):
        one = record["figures"][f"{algo}_{environment}"]
        ours, theirs = (f"{one[f'return_{side}_mean']:,.0f}" for side in ("ours", "theirs"))
        ratio = one["cpu_s_ratio"]
        arrived = one["seeds_that_got_there"]["theirs"]
        when = f"theirs got there {arrived} of {record['seeds']} times"
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


def _to_return(record: Named, *, assets: str) -> str:
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


def _thirty(record: Named) -> str:
    return (
        joined(percent(share, 0) for share in record["thirty_assets"]["shares_of_rule"])
        + " of the rule's return"
    )


LEARNING = (
    Row(
        "known optimum, realised reward, 60 CPU-s",
        "known_optimum",
        partial(_optimum, reward="realised"),
        "APG 97 % at 20 s, PPO 93, A2C and SAC 85; rate within 20 %",
    ),
    Row(
        "the same, expected reward",
        "known_optimum",
        partial(_optimum, reward="expected"),
        "PPO 97 %, SAC 95, TD3 93",
    ),
    Row("Kelly's growth rate, 30 CPU-s", "kelly", _kelly, "98 %"),
    Row("leaked future; PPO at 20 CPU-s, APG at 10", "leaked_future", _leaked, "90 %, 95 %, 47 %"),
    Row(
        "Pendulum beside Stable-Baselines3, equal env-steps: return ours / theirs (CPU time to"
        " theirs)",
        "algorithms",
        partial(_classic, environment="Pendulum-v1"),
        "not below; 0.5",
    ),
    Row(
        "the same on InvertedDoublePendulum",
        "algorithms",
        partial(_classic, environment="InvertedDoublePendulum-v5"),
        "not below; 0.5",
    ),
    Row(
        "time to 10, 25 and 50 % of the best rule's return on a planted market, CPU-seconds on one"
        " thread, everyone with our actions and tuned, medians; 10 assets",
        "time_to_return",
        partial(_to_return, assets="10"),
        "ahead of all",
    ),
    Row(
        "the same on 100 assets; the other libraries keep their settings, tuned on 10",
        "time_to_return",
        partial(_to_return, assets="100"),
        "ahead of all",
    ),
    Row("the default PPO on 30 planted assets after 14 CPU-s", "time_to_return", _thirty, "80 %"),
)


# --- what holds it up -----------------------------------------------------------------------------


def _chaos(found: Named) -> str:
    count = found["lost_or_doubled_or_changed"]
    lost = f"{count} times something" if count else "nothing"
    return (
        f"{found['kill_points']:,} kills at file and database operations, {found['random_moments']}"
        f" at random moments ({found['killed_at_random_moments']} hit), {found['full_disk_points']}"
        f" full disks: {lost} lost, doubled or changed; recovery at most"
        f" {found['recovery_seconds_max']:.1f} s"
    )


def _orchestrator(found: Named) -> str:
    scale = found["scale"]
    return (
        f"{scale['pods']:,} pods, {scale['at_once']} at once:"
        f" {percent(scale['orchestrator_core_share'])} of a core, reconcile p99"
        f" {scale['reconcile_ms_p99']:.0f} ms, {found['submissions']['per_second']:,.0f}"
        " submissions/s"
    )


def _two_cores(found: Named) -> str:
    ours, bare = (found[key]["2"] for key in ("ratio_to_one", "bare_processes_ratio_to_one"))
    return f"{times(ours, 2)} (processes that only count: {times(bare, 2)})"


def _simulation(found: Named) -> str:
    slow, fast = (found[f"{every}_simulation_seconds"] for every in ("minute", "half_hourly"))
    return f"{slow:.1f} s on one core (every half hour: {fast:.1f})"


def _store_chaos(found: Named) -> str:
    lost = found["lost_doubled_or_changed"] or "nothing"
    s3 = found["parts"]["random_s3"]
    return (
        f"{found['struck']} kills, each followed by an emptied disk, {s3['struck']} of them on S3:"
        f" {lost} lost, doubled or changed; on S3 back in {s3['resume_seconds_median']:.1f} s"
        " (median)"
    )


def _ray_chaos(found: Named) -> str:
    keys = ("results_lost_or_changed", "results_doubled", "differs_from_undisturbed")
    bad = sum(found[key] for key in keys)
    lost = f"{bad} results" if bad else "nothing"
    back = dict(found["recovery_seconds_max"])
    orchestrator, head = (back.pop(key) for key in ("orchestrator", "head_and_orchestrator"))
    return (
        f"{lost} lost, doubled or changed; back in {max(back.values()):.1f} s, the orchestrator in"
        f" {orchestrator:.1f}, with the head in {head:.1f}"
    )


def _calibration(found: Named) -> str:
    sizes = [row["alpha"] for row in found["size"]]
    year = next(row for row in found["power"] if row["sessions"] == 250 and row["trials"] == 1)
    long = next(row for row in found["power"] if row["sessions"] == 1000 and row["cash"])
    return (
        f"without skill {percent(min(sizes))} to {percent(max(sizes))} pass at 5 %, 12 to 1,000"
        " sessions, 1 to 80 trials; an information ratio of 2 over 250 sessions"
        f" {percent(year['alpha'], 0)}, a Sharpe ratio of 3 over 1,000 {percent(long['alpha'], 0)}"
    )


def _engines(found: Named) -> str:
    return (
        f"equal fills; equity at every bar to {found['largest_equity_difference_usd']:.1g} USD"
        " on $1M"
    )


def _scaling(found: Named) -> str:
    return percent(found["throughput"]["long_pods"]["efficiency_16_to_80"])


def _search(found: Named) -> str:
    gains = [[gain / 5 for gain in list_speedups(found, target, 80)] for target in found["targets"]]
    middle = [median(one) for one in gains]
    seeds = len({run["seed"] for run in found["runs"]})
    return (
        f"{percent(min(middle), 0)} to {percent(max(middle), 0)} by target (medians"
        f" of {seeds} seeds; single seeds {percent(min(map(min, gains)), 0)} to"
        f" {percent(max(map(max, gains)), 0)})"
    )


def _stress(found: Named) -> str:
    most = max(found["stress"], key=lambda one: one["pods"])
    lost = most["lost_or_doubled_results"] or "nothing"
    waits = 1e3 * most["result_waits_seconds_p99"]
    return (
        f"{most['pods']:,} pods on {most['gpus']:,} GPUs: {lost} lost or doubled; "
        f"{most['orchestrator_cpu_ms_per_pod']:.2f} ms CPU a pod; results wait {waits:.0f} ms (p99)"
    )


def _bytes(found: Named) -> str:
    small = found["small"]
    fused, gradients = (
        percent(small[way]["share_of_optimum_mean"], 0) for way in ("fusions_8", "gradients")
    )
    return (
        f"{times(small['bytes_gradients_over_fusions_8'], 0)}, at {gradients} against {fused} of"
        " the optimum"
    )


def _browser(found: Named) -> str:
    slowest = max(found["rerun_ms"], key=found["rerun_ms"].__getitem__)
    return (
        f"{found['runs']:,} runs, a load of {found['load']:.1f}: {found['first_page_s']:.1f} s (the"
        f" server took {found['server_s']:.1f} s to start), again {found['again_s']:.1f} s; the"
        f" table to choose from after {found['table_s']:.1f} s (one bare table"
        f" {found['bare_first_s']:.1f} s), the chosen run's charts after"
        f" {found['chosen_run_s']:.1f} s; {found['rerun_ms'][slowest]:.0f} ms ({slowest})"
    )


def _deploy(found: Named) -> str:
    quick = found["quickstart"]
    many = found["hundred"]
    same = "" if quick["equal_to_the_backtest"] and many["equal_to_the_backtest"] else "**not** "
    return (
        f"{quick['decisions_a_minute']:,.0f}, {1e3 * quick['p50_cpu_seconds']:.1f} ms of the"
        f" processor; {1e3 * many['p99_seconds']:.0f} ms (median {1e3 * many['p50_seconds']:.0f}, of"
        f" the processor {1e3 * many['p50_cpu_seconds']:.0f}); the account is {same}the backtest's"
        " to the last bit"
    )


def _report(found: Named) -> str:
    return f"{found['cscv_seconds']:.2f} s; {found['report_seconds']:.1f} s"


RUNNING = (
    Row(
        "orchestrator, pods and evaluators killed, and disks filled",
        "chaos",
        _chaos,
        "nothing; 5 s",
    ),
    Row("orchestrator", "orchestrator", _orchestrator, "10 %, 100 ms, 1,000/s"),
    Row("two pods on two cores against one on one", "efficiency_cpu", _two_cores, "1.8 ×"),
    Row(
        "how often the verdict's test calls luck skill, and skill skill",
        "calibration",
        _calibration,
        "4 to 6 %; 67, 100 %",
    ),
    Row(
        "the same orders through backtesting.py and zipline-reloaded",
        "cross_engine",
        _engines,
        "a cent",
    ),
    Row(
        "98,700 minutes × 100 stocks × 10 members, deciding every minute",
        "backtest",
        _simulation,
        "10 s",
    ),
    Row(
        "overfitting probability over 100 strategies × 98,700 minutes; the report",
        "backtest",
        _report,
        "10 s; 15 s",
    ),
    Row("runs in a store", "store_chaos", _store_chaos, "nothing"),
    Row(
        "strikes at a Ray cluster: process, raylet, node, orchestrator, head; a node joins, one"
        " drains",
        "ray_chaos",
        _ray_chaos,
        "nothing",
    ),
    Row(
        "efficiency from 16 to 80 GPUs, orchestration alone, predicted from measured constants",
        "scaling",
        _scaling,
        "80 %",
    ),
    Row(
        "the same of the time to a target, which contains the search, simulated",
        "search",
        _search,
        "the paper: 36 %",
    ),
    Row(
        "orchestrator before a simulated cluster, with failures and preemptions",
        "scaling",
        _stress,
        "nothing",
    ),
    Row(
        "bytes between a pod's learners: gradients over eight fusions",
        "communication",
        _bytes,
        DASH,
    ),
    Row(
        "app in a browser: the first runs, from opening the address of a server just started, and"
        " opened again; the slowest page's rerun",
        "app_browser",
        _browser,
        f"1.5 s; {DASH}; {DASH}; 300 ms",
    ),
    Row(
        "paper: a replay's decisions a minute, 8 symbols; with 100 symbols of minute bars, from a"
        " decision's newest bars to its last order, p99",
        "deploy",
        _deploy,
        DASH,
    ),
)

measured: dict[str, tuple[Callable[[Records], str], tuple[str, ...]]] = {
    name: (partial(table_of, rows), tuple(dict.fromkeys(row.record for row in rows)))
    for name, rows in (("speed", SPEED), ("learning", LEARNING), ("running", RUNNING))
}
"""Block -> its maker, and the records it needs."""
