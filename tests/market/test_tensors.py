import contextlib
from dataclasses import replace

import pytest
import torch
from safetensors.torch import save_file

from fintrader.errors import MarketError
from fintrader.market.tensors import MarketTensors, Windows
from fintrader.results.market_description import ColumnScale, Normalisation, Provenance
from tests.bars.tables import assert_same_market
from tests.factories import make_market
from tests.quick import slow_but


def test_saved_markets_come_back_equal(tmp_path):
    market = make_market(60, 4)
    content = market.save(tmp_path / "m.safetensors")
    again = MarketTensors.load(tmp_path / "m.safetensors", verify=True)
    assert again.content_hash() == content == market.content_hash()
    assert_same_market(market, again)
    assert again.description == market.description
    shares = replace(market, shares_outstanding=market.volume + 1)
    assert shares.save(tmp_path / "s.safetensors") != content
    assert_same_market(shares, MarketTensors.load(tmp_path / "s.safetensors", verify=True))


def test_the_hash_sees_every_array_and_name():
    market = make_market(60, 4)
    changed = [
        replace(market, symbols=("A", "B", "C", "D")),
        replace(market, provenance=Provenance(hours="extended")),
        replace(market, cut_from=("test",)),
    ]
    for name, tensor in market.arrays():
        other = tensor.clone()
        step = {"low": -1e-3, "open": 0.0, "close": 0.0}.get(name, 1)
        other[-1] = ~other[-1] if other.dtype == torch.bool else other[-1] + step
        if name in ("open", "close"):  # a price between high and low
            other[-1] = (market.low[-1] + market.high[-1]) / 2
        if name == "tradable":  # a symbol without a price cannot be tradable
            other[-1, 2] = False
        changed.append(replace(market, **{name: other}))
    assert len({candidate.content_hash() for candidate in [market, *changed]}) == len(changed) + 1


def test_windows_are_views_without_a_copy():
    market = make_market(60, 3)
    part = market.window(10, 30)
    assert part.num_bars == 20
    assert part.close.data_ptr() == market.close[10].data_ptr()
    train, validation, test = market.split()
    assert (train.num_bars, validation.num_bars, test.num_bars) == (20, 19, 19)
    for start, stop in ((5, 5), (10, 5), (-1, 5), (0, 61)):
        with pytest.raises(MarketError, match="window"):
            market.window(start, stop)
    with pytest.raises(MarketError, match="no train/validation/test"):
        part.split()


def test_last_bar_is_where_a_symbol_ends():
    market = make_market(60, 4)
    assert market.last_bar.tolist() == [59, 59, 47, 59]
    assert market.window(0, 40).last_bar.tolist() == [39, 39, 39, 39]


DAMAGES = {
    "truncated": lambda path, data: path.write_bytes(data[: len(data) // 2]),
    "flipped": lambda path, data: path.write_bytes(data[:-3] + bytes([data[-3] ^ 1]) + data[-2:]),
    "text": lambda path, data: path.write_text("hello"),
    "missing": lambda path, data: path.unlink(),
    "foreign": lambda path, data: save_file({"x": torch.zeros(2)}, path),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_a_typed_error(tmp_path, damage):
    path = tmp_path / "m.safetensors"
    make_market(60, 4).save(path)
    DAMAGES[damage](path, path.read_bytes())
    with pytest.raises(MarketError):
        MarketTensors.load(path, verify=True)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"close": torch.zeros(60, 4)}, "prices must be positive"),
        ({"close": torch.ones(60, 3)}, "shape"),
        ({"high": torch.full((60, 4), 1e-3)}, "between its low and its high"),
        ({"low": torch.full((60, 4), 1e6)}, "between its low and its high"),
        ({"low": torch.full((60, 4), torch.nan)}, "a low and a close"),
        ({"open": torch.ones(60, 4, dtype=torch.float64)}, "float64"),
        ({"features": torch.full((60, 4, 2), float("nan"))}, "features must be finite"),
        ({"minutes": torch.zeros(60, dtype=torch.int64)}, "increase strictly"),
        ({"session": torch.arange(60, 0, -1)}, "must not decrease"),
        ({"benchmark": torch.zeros(60, dtype=torch.float64)}, "benchmark"),
        ({"tradable": torch.ones(60, 4, dtype=torch.bool)}, "tradable cell"),
        ({"shares_outstanding": torch.zeros(60, 4)}, "shares outstanding must be"),
        ({"symbols": ("A", "A", "B", "C")}, "distinct symbols"),
        ({"windows": Windows((0, 30), (20, 40), (40, 60))}, "in order"),
        ({"cut_from": ("best",)}, r"cut_from is \('best',\); it names windows of a split"),
        ({"cut_from": ("test", "train")}, "in their order: train, validation, test"),
    ],
)
def test_inconsistent_markets_are_refused(change, message):
    with pytest.raises(MarketError, match=message):
        replace(make_market(60, 4), **change)


@pytest.mark.parametrize("stride", slow_but(0, every=[5, 1]))
def test_a_flip_anywhere_in_the_header_is_a_typed_error(tmp_path, stride):
    path = tmp_path / "m.safetensors"
    scales = Normalisation({"f0": ColumnScale(0.25, 1.0)}, {}, clip=3.0, cross_sectional="none")
    replace(make_market(60, 4), normalisation=scales, provenance=Provenance(ended=("é", "B"))).save(
        path
    )
    data = path.read_bytes()
    length = 8 + int.from_bytes(data[:8], "little")
    for position in range(0, length, stride):
        flipped = bytearray(data)
        flipped[position] ^= 1 << (position % 8)
        path.write_bytes(flipped)
        with pytest.raises(MarketError):
            MarketTensors.load(path, verify=True)
        with contextlib.suppress(
            MarketError
        ):  # without a look at every byte: the market, or a typed error
            MarketTensors.load(path)
    path.write_bytes(data.replace(b'"benchmark"', b'"cenchmark"', 1))
    with pytest.raises(MarketError, match="damaged"):
        MarketTensors.load(path)


# --- as a person reads it -------------------------------------------------------------------------


def test_a_market_prints_five_lines_of_symbols_span_features_windows_and_warnings():
    market = make_market(360, 7, gaps=False)
    lines = repr(market).splitlines()
    assert len(lines) == 5
    assert lines[0] == "Market of 7 symbols: S000, S001, S002, S003, S004 and 2 more"
    assert "360 of 1 min, 2020-01-02 to 2020-01-19 (UTC), 18 sessions" in lines[1]
    assert "f0, f1; context c0, c1" in lines[2]
    assert lines[3] == "  windows   train/validation/test 120/119/119 bars"
    assert lines[4] == "  warnings  none"
    assert str(market) == repr(market)
    parts = repr(market.split()).splitlines()
    assert [line.split(":")[0] for line in parts[::5]] == ["train", "validation", "test"]
    assert [line.split()[-1] for line in parts[3::5]] == ["train", "validation", "test"]
    provenance = replace(market.provenance, left_out={"X": "no bars"}, repairs={"empty_rows": 3})
    warned = replace(market, provenance=provenance, guesses=("guessed: label start",))
    assert repr(warned).splitlines()[4] == (
        "  warnings  guessed: label start; left out X: no bars; 3 empty rows"
    )


def test_a_market_becomes_tables_of_pandas():
    market = make_market(60, 4)
    one = market["S002"]
    assert one.columns.tolist() == [
        *("open", "high", "low", "close", "volume", "tradable", "member"),
        *market.feature_names,
        *market.context_names,
    ]
    assert one["close"].to_numpy() == pytest.approx(market.close[:, 2].numpy(), nan_ok=True)
    assert one["f1"].to_numpy() == pytest.approx(market.features[:, 2, 1].numpy())
    assert one["c1"].to_numpy() == pytest.approx(market.context[:, 1].numpy())
    assert str(one.index.tz) == market.timezone
    assert (one.index.tz_convert(None).to_numpy() == market.timestamps()).all()
    whole = market.to_pandas()
    assert len(whole) == 60 * 4
    assert whole.xs("S002", level="symbol").equals(one)
    for wrong in ("S02", slice(5), 0):
        with pytest.raises(
            MarketError, match=r"give one of S000, .*; market.window\(start, stop\)"
        ):
            market[wrong]


def test_a_market_draws_the_growth_of_its_symbols():
    market = make_market(360, 3, gaps=False)
    curves = market.plot().data
    assert [curve.name for curve in curves] == list(market.symbols)
    last = market.adjusted_close[-1] / market.adjusted_close[19]
    assert [curve.y[-1] for curve in curves] == pytest.approx(last.tolist())


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("train", r"it is market\.split\(\)\.train"),
        ("symbol", "did you mean 'symbols'"),
        ("closes", "did you mean 'close'"),
        ("df", "did you mean 'to_pandas'"),
    ],
)
def test_an_attribute_that_is_guessed_is_answered(name, hint):
    with pytest.raises(AttributeError, match=hint):
        getattr(make_market(60, 4), name)


def test_windows_are_not_cut_by_split():
    for arguments, keywords in (((0.8,), {}), ((), {"test_size": 0.2})):
        with pytest.raises(MarketError, match=r"windows=\{'fractions': \[0\.6, 0\.2, 0\.2\]\}"):
            make_market(60, 4).split(*arguments, **keywords)
