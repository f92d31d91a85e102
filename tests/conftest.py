"""What every test stands on: Ctrl-C as in a terminal, no limit that a slow machine could miss, how
often to try.

`make test` runs what is not marked `slow`, with hypothesis's profile "quick"; `make test-all` runs
everything, with `--hypothesis-profile=thorough`. Both judge by what comes out, never by how long it
takes.
"""

import atexit
import gc
import os
import shutil
import signal
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

for name, tries in (("quick", 25), ("thorough", 100)):
    settings.register_profile(
        name,
        max_examples=tries,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
        print_blob=True,
    )
settings.load_profile("quick")

# As in a worker, before anything imports torch: sums over several threads would run in another
# order.
os.environ["OMP_NUM_THREADS"] = "1"

# Whoever starts the tests in the background of a shell without job control has SIGINT ignored, and
# so have all processes that tests start: Ctrl-C could not be tried.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


# No test may write to the user's own ledger.
os.environ["FINTRADER_HOME"] = tempfile.mkdtemp(prefix="fintrader-tests-")
atexit.register(shutil.rmtree, os.environ["FINTRADER_HOME"], ignore_errors=True)


ROOT = Path(__file__).parents[1] / "fintrader"
# numba compiles again what was edited, but not what calls it from another file.
newest = max(
    path.stat().st_mtime for path in (*ROOT.glob("envs/fast/*.py"), *ROOT.glob("agents/fast/*.py"))
)
for compiled in ROOT.rglob("*.nb[ic]"):
    with suppress(FileNotFoundError):
        if compiled.stat().st_mtime < newest:
            compiled.unlink()


@pytest.fixture(scope="module", autouse=True)
def own_ledger(tmp_path_factory):
    """A ledger of looks for the tests of one module, and for the processes that they start."""
    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FINTRADER_HOME", str(home))
        yield home


@pytest.fixture(scope="session", autouse=True)
def days_once():
    """Lay out an exchange's holidays once in a process, up to 2035 instead of 2200, and its sessions
    once for all years from 2000 to 2025: exchange_calendars does both anew for every span of years,
    which takes seconds for all exchanges together, and they are the same in all of them."""
    import pandas as pd
    from exchange_calendars.calendar_utils import _default_calendar_factories
    from exchange_calendars.exchange_calendar import ExchangeCalendar
    from pandas.tseries.holiday import AbstractHolidayCalendar

    from fintrader.bars import calendar
    from fintrader.errors import DataError

    known = {}

    def split_by_day(rule):
        def day(calendar):
            kind = type(calendar)
            if kind not in known:
                known[kind] = rule.func(calendar)
            return known[kind]

        return property(day)

    open_calendar = cache(calendar._open_calendar.__wrapped__)

    def open_wide(name, first_year, last_year):
        if first_year >= 2000 and last_year <= 2025:
            with suppress(DataError):
                return open_calendar(name, 2000, 2025)
        return open_calendar(name, first_year, last_year)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(calendar, "_open_calendar", open_wide)
        patch.setattr(AbstractHolidayCalendar, "end_date", pd.Timestamp("2035-12-31"))
        for kind in {ExchangeCalendar, *_default_calendar_factories.values()}:
            if "day" in vars(kind):
                patch.setattr(kind, "day", split_by_day(vars(kind)["day"]))
        yield


@pytest.fixture
def s3(monkeypatch):
    """A client of an object store on loopback that speaks S3."""
    from tests.engines import object_stores

    with object_stores.s3(monkeypatch) as client:
        yield client


@pytest.fixture
def frequent_reports(monkeypatch):
    """Let agents with a replay buffer report, and so be stored, every fourth step."""
    from fintrader.agents import off_policy

    monkeypatch.setattr(off_policy, "REPORT_STEPS", 4)


@pytest.fixture(scope="session")
def template(tmp_path_factory):
    """`data/tensors` with a market, `runs/` with `demo` and `second` (finished), `started`,
    `racing`, `raced`."""
    from tests.engines import fakes

    root = tmp_path_factory.mktemp("site")
    market = fakes.save_market(root / "data" / "tensors")
    fakes.make_run(root / "runs", "demo", market=market, checked=True)
    fakes.make_run(root / "runs", "second", market=market, seed=2)
    for stage in ("started", "racing", "raced"):
        fakes.make_run(root / "runs", stage, market=market, stage=stage, seed=1)
    return root


@pytest.fixture
def site(template, tmp_path):
    """A copy of the template that a test may damage."""
    return Path(shutil.copytree(template, tmp_path / "site"))


def pytest_collection_finish():
    """Searches for garbage pass over what the tests import: it stays, and is most of what lives."""
    gc.collect()
    gc.freeze()


# These make numba compile all large kernels, for more than a minute. All other processes would
# compile the same again meanwhile, or wait.
COMPILING = ("envs/test_orders.py", "agents/test_descent.py", "backtesting/test_account.py")


@pytest.hookimpl(trylast=True)  # of what is left of the collection
def pytest_collection_modifyitems(items):
    """Order tests for two processes, which get a half each: the first compiles the kernels, while
    the second reads bars, which needs none. Mark tests with `mark_items`."""
    mark_items(items)
    compiling = [item for item in items if str(item.path).endswith(COMPILING)]
    bars = [item for item in items if "bars" in item.path.parts]
    early = {*compiling, *bars}
    others = [item for item in items if item not in early]
    half = max(len(items) // 2 - len(compiling), 0)
    items[:] = [*compiling, *others[:half], *bars, *others[half:]]


def mark_items(items):
    """Slow tests may take an hour: the limit is for what hangs. Without a GPU or the real bars,
    tests that need them skip."""
    gpu = [item for item in items if item.get_closest_marker("gpu")]
    if gpu:
        import torch

        if not torch.cuda.is_available():
            for item in gpu:
                item.add_marker(pytest.mark.skip("needs a CUDA device"))
    for item in items:
        for bars in getattr(item.get_closest_marker("real_data"), "args", ()):
            if not bars.exists():
                item.add_marker(pytest.mark.skip("the real bars are not beside the checkout"))
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(3600))
