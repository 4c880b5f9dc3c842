"""Devices follow their settings, independent of the order of draws."""

import json
import re
import tomllib
from math import inf
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedloom.protocol.errors import UsageError
from fedloom.simulation.clock import philox
from fedloom.simulation.clock.availability import from_windows, periodic
from fedloom.simulation.clock.device_random import Source, Uniforms, draw
from fedloom.simulation.clock.devices import Devices, Load

PLAIN = {"compute_examples_per_s": 100, "download_mbit_s": 8, "upload_mbit_s": 4}


def built(num_clients=4, seed=0, **settings):
    """Devices of the plain table with some settings changed; None removes one."""
    table = {name: value for name, value in (PLAIN | settings).items() if value is not None}
    return Devices.build(table, num_clients, seed)


# ---- settings ------------------------------------------------------------------------------------


def test_numbers_have_the_units_of_their_names():
    """100 examples/s, 8 and 4 Mbit/s."""
    devices = built()
    assert devices.example_s.tolist() == [0.01] * 4
    assert devices.download.tolist() == [1e6] * 4
    assert devices.upload.tolist() == [5e5] * 4
    slow = built(compute_examples_per_s=None, compute_s_per_example=2)
    assert slow.example_s.tolist() == [2.0] * 4


@pytest.mark.parametrize("name", PLAIN)
def test_a_missing_timing_is_named(name):
    with pytest.raises(UsageError, match=rf"devices\.{name} is missing"):
        built(**{name: None})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"upload_mbit_s": 0}, r"upload_mbit_s > 0"),
        ({"download_mbit_s": -3}, r"download_mbit_s > 0"),
        ({"upload_mbit_s": float("nan")}, "upload_mbit_s as a finite number"),
        ({"upload_mbit_s": "fast"}, "upload_mbit_s as a finite number"),
        ({"upload_mbit_s": True}, "upload_mbit_s as a finite number"),
        ({"compute_s_per_example": 1}, "not both"),
        ({"speed": 1}, "speed'. Known: "),
        ({"drop_out": 1.5}, "drop_out from 0 to 1"),
        ({"failure": -0.1}, "failure from 0 to 1"),
        ({"jitter": -1}, "jitter"),
        ({"availability": {"on_s": 10}}, "on_s and off_s"),
        ({"availability": {"on_s": 10, "off_s": 0}}, "off_s > 0"),
        ({"trace": {"speed": "x"}}, "speed'. Known: "),
        ({"trace": "x"}, "a table"),
        (
            {"upload_mbit_s": {"distribution": "gauss"}},
            "distribution as a known name.*Known: choice",
        ),
        ({"upload_mbit_s": {"distribution": "normal", "mean": 1}}, "mean, std .*got mean"),
        ({"upload_mbit_s": {"distribution": "exponential", "mean": 1, "sd": 1}}, "_mbit_s.sd'"),
        ({"upload_mbit_s": {"distribution": "uniform", "low": 2, "high": 1}}, "low=2"),
        (
            {"upload_mbit_s": {"distribution": "uniform", "low": -1, "high": 0}},
            "Set min of the distribution",
        ),
        ({"upload_mbit_s": {"distribution": "choice", "values": []}}, "list of numbers"),
        (
            {"upload_mbit_s": {"distribution": "choice", "values": [1, 2], "weights": [1]}},
            "2 devices.upload_mbit_s.weights",
        ),
    ],
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(UsageError, match=message):
        built(**settings)


def test_zero_speeds_are_refused():
    """Also for devices made without settings."""
    with pytest.raises(UsageError, match="upload > 0"):
        Devices(
            seed=0, example_s=np.ones(2), download=np.ones(2), upload=np.array([1.0, 0.0]),
            drop_out=np.zeros(2), failure=np.zeros(2),
        )  # fmt: skip


# ---- distributions -------------------------------------------------------------------------------

N = 200_000


@pytest.mark.parametrize(
    ("table", "quantiles"),
    [
        ({"distribution": "constant", "value": 3}, (3, 3, 3)),
        ({"distribution": "uniform", "low": 2, "high": 6}, (3, 4, 5)),
        ({"distribution": "normal", "mean": 5, "std": 2}, (3.651, 5, 6.349)),
        ({"distribution": "lognormal", "median": 2, "sigma": 0.5}, (1.4275, 2, 2.8022)),
        ({"distribution": "exponential", "mean": 4}, (1.1507, 2.7726, 5.5452)),
        ({"distribution": "pareto", "minimum": 1, "shape": 2}, (1.1547, 1.4142, 2)),
        ({"distribution": "choice", "values": [1, 7], "weights": [4, 1]}, (1, 1, 1)),
        ({"distribution": "uniform", "low": 0, "high": 8, "min": 3, "max": 5}, (3, 4, 5)),
    ],
)
def test_distributions_have_their_quartiles(table, quantiles):
    values = draw("x", table, N, Source(1, "test"))
    assert values.shape == (N,)
    assert np.quantile(values, [0.25, 0.5, 0.75]) == pytest.approx(quantiles, rel=0.02)


def test_a_choice_follows_its_weights():
    """Values of weight 0 are never drawn."""
    table = {"distribution": "choice", "values": [1, 2, 3], "weights": [1, 3, 0]}
    values = draw("x", table, N, Source(1, "test"))
    assert (values == 1).mean() == pytest.approx(0.25, abs=0.01)
    assert not (values == 3).any()


def test_a_client_keeps_its_numbers_when_the_population_grows():
    few, many = Source(7, "speed", 3).normals(10), Source(7, "speed", 3).normals(1000)
    assert np.array_equal(few, many[:10])


@pytest.mark.parametrize("compiles", [True, False], ids=["numba", "numpy"])
def test_a_few_numbers_are_those_of_the_whole_stream(compiles, monkeypatch):
    """The first and last blocks of the generator, and clients in any order, twice."""
    if compiles:
        pytest.importorskip("numba", reason="pip install 'fedloom[fast]'")
        monkeypatch.setattr(philox, "LEAST", 1)
    else:
        monkeypatch.setattr(philox, "doubles_at", lambda: None)
    count = 300_001
    source = Source(11, "device jitter", 5)
    whole = source.uniforms(count, "angle")
    places = np.random.default_rng(2).permutation(count)[:999]
    places[:6] = [0, 1, 2, 3, 4, count - 1]
    few = Uniforms(source, count, "angle")
    for wanted in (places, places[:1], places[::-1]):
        assert few[wanted].tobytes() == whole[wanted].tobytes()
    assert few[:].tobytes() == whole.tobytes()
    assert few[5] == whole[5]


def test_sources_of_other_seeds_purposes_and_rounds_differ():
    sources = [Source(0, "a"), Source(1, "a"), Source(0, "b"), Source(0, "a", 0), Source(0, "a", 1)]
    assert len({source.uniforms(1).item() for source in sources}) == len(sources)


# ---- work ----------------------------------------------------------------------------------------


def seconds(devices, load, number=1, **has):
    """Of each device's work."""
    times = devices.work_times(load, number)
    return [times.seconds(place, **has) for place in range(len(devices))]


def test_work_is_download_training_and_upload():
    """1 s + 600 examples at 100/s + 2 s; evaluating costs a third."""
    load = Load(trained=np.full(4, 600), download_bytes=1_000_000, upload_bytes=1_000_000)
    assert seconds(built(), load) == [9.0] * 4
    load = Load(
        trained=np.zeros(4, np.int64), evaluated=np.full(4, 300),
        download_bytes=1_000_000, upload_bytes=0,
    )  # fmt: skip
    assert seconds(built(), load) == [2.0] * 4


def test_a_device_downloads_what_it_lacks_and_uploads_its_own_update():
    """0, 1, 2 and 3 s down, none for files that it has; 8, 6, 4 and 2 s up, at 4 Mbit/s."""
    down = np.arange(4) * 1_000_000
    load = Load(
        trained=np.zeros(4), download_bytes=down, upload_bytes=lambda place: (4 - place) * 1_000_000
    )
    assert seconds(built(), load) == [8.0, 7.0, 6.0, 5.0]
    assert seconds(built(), load, has_files=True) == [8.0, 6.0, 4.0, 2.0]


def test_jitter_differs_by_round_and_client_and_has_median_1():
    devices = built(num_clients=20_001, jitter=0.3)
    load = Load(trained=np.full(20_001, 100), download_bytes=0, upload_bytes=0)
    first, second = seconds(devices, load), seconds(devices, load, number=2)
    assert np.median(first) == pytest.approx(1.0, rel=0.02)
    assert np.log(first).std() == pytest.approx(0.3, rel=0.02)
    assert not np.isclose(first, second).any()
    assert np.array_equal(seconds(devices, load), first)


def test_probabilities_are_met():
    devices = built(num_clients=N, drop_out=0.1, failure=0.25)
    everyone = np.arange(N)
    declines, fails_at = devices.declines(1)(everyone), devices.fails_at(1)(everyone)
    assert declines.mean() == pytest.approx(0.1, abs=0.005)
    assert (fails_at < 1).mean() == pytest.approx(0.25, abs=0.005)
    assert np.median(fails_at[fails_at < 1]) == pytest.approx(0.5, abs=0.01)
    assert (declines & (fails_at < 1)).mean() == pytest.approx(0.025, abs=0.005)
    assert not np.array_equal(declines, devices.declines(2)(everyone))
    assert built().declines(1) is None
    assert built().fails_at(1) is None


# ---- availability --------------------------------------------------------------------------------


def test_periodic_devices_are_available_for_their_share():
    devices = built(num_clients=30_000, availability={"on_s": 100, "off_s": 200})
    for now in (0.0, 50.0, 12_345.6):
        there, changes = devices.availability.look(now)
        assert there.mean() == pytest.approx(1 / 3, abs=0.01)
        assert (changes > now).all()
        assert changes[there].max() <= now + 100
        assert changes[~there].max() <= now + 200


def test_windows_repeat_and_join_at_the_end_of_the_cycle():
    """[90, 100] and [0, 20] of a 100 s cycle are one stay of 30 s."""
    availability = from_windows(
        [[(0.0, 20.0), (50.0, 60.0), (90.0, 100.0)]], [100.0], np.zeros(1, np.int64)
    )
    now, changes = 95.0, []
    for _ in range(5):
        now = availability.next_change(0, now)
        changes.append(now)
    assert changes == [120.0, 150.0, 160.0, 190.0, 220.0]


def test_windows_that_touch_or_overlap_are_one():
    availability = from_windows(
        [[(10.0, 20.0), (20.0, 30.0), (25.0, 40.0), (70.0, 70.0)]], [100.0], np.zeros(1, np.int64)
    )
    assert availability.next_change(0, 0.0) == 10.0
    assert availability.next_change(0, 10.0) == 40.0
    assert availability.next_change(0, 40.0) == 110.0


def test_constant_devices_have_no_next_change():
    availability = from_windows([[(0.0, 100.0)], []], [100.0, 50.0], np.array([0, 1]))
    there, changes = availability.look(1234.0)
    assert there.tolist() == [True, False]
    assert changes.tolist() == [inf, inf]
    assert availability.next_change(0, 5.0) == inf


@given(
    on_s=st.floats(0.01, 1e4),
    off_s=st.floats(0.01, 1e4),
    phase=st.floats(0, 1, exclude_max=True),
    now=st.floats(0, 1e7),
)
def test_changes_of_one_device_and_of_all_agree(on_s, off_s, phase, now):
    """A change is after now, the device has changed at its time, and both methods agree."""
    availability = periodic(np.array([on_s]), np.array([off_s]), np.array([phase]))
    there, changes = availability.look(now)
    for _ in range(5):
        at = availability.next_change(0, now)
        assert at == changes[0] > now
        before, now = there[0], at
        there, changes = availability.look(now)
        assert there[0] != before


def test_the_first_time_with_enough_devices_is_found():
    """By hand: 2 are available from 30 s, 3 from 310 s, all four never."""
    windows = [[(0.0, 1000.0)], [(30.0, 40.0)], [(300.0, 400.0)], [(310.0, 320.0)]]
    availability = from_windows(windows, [1000.0] * 4, np.arange(4))
    found = [availability.first_with(wanted, 0.0) for wanted in (1, 2, 3, 4)]
    assert found == [0.0, 30.0, 310.0, None]
    assert availability.first_with(2, 35.0) == 35.0
    assert availability.first_with(2, 500.0) == 1030.0


def test_a_departure_and_an_arrival_at_once_do_not_overlap():
    windows = [[(0.0, 50.0)], [(50.0, 100.0)]]
    availability = from_windows(windows, [100.0] * 2, np.arange(2))
    assert availability.first_with(2, 0.0) is None


# ---- traces --------------------------------------------------------------------------------------


@pytest.fixture
def traces(tmp_path):
    """Two devices' capacities and three's behaviours."""
    capacity = {
        "a": {"computation": 10, "communication": 8},
        "b": {"computation": 20, "communication": 16},
    }
    behaviour = {
        number: {"active": [10 * number], "inactive": [10 * number + 5], "finish_time": 100}
        for number in range(3)
    }
    (tmp_path / "capacity").write_text(json.dumps(capacity))
    (tmp_path / "behaviour").write_text(json.dumps(behaviour))
    return tmp_path


def test_traces_are_assigned_in_their_order(traces):
    table = {"trace": {"capacity": "capacity", "behaviour": "behaviour"}}
    devices = Devices.build(table, 5, seed=0, folder=traces)
    assert devices.example_s.tolist() == pytest.approx([0.03, 0.06, 0.03, 0.06, 0.03])
    assert devices.download.tolist() == devices.upload.tolist() == [1e3, 2e3, 1e3, 2e3, 1e3]
    there, _ = devices.availability.look(12.0)
    assert there.tolist() == [False, True, False, False, True]


def test_traces_can_be_shuffled(traces):
    table = PLAIN | {"trace": {"behaviour": "behaviour", "shuffle": True}}
    orders = {
        tuple(Devices.build(table, 3, seed=seed, folder=traces).availability.cycle.tolist())
        for seed in range(20)
    }
    assert len(orders) == 6


def test_a_trace_and_a_setting_of_one_quantity_are_refused(traces):
    with pytest.raises(UsageError, match="remove compute_examples_per_s, download_mbit_s, upload"):
        Devices.build(PLAIN | {"trace": {"capacity": "capacity"}}, 2, 0, traces)
    table = PLAIN | {"trace": {"behaviour": "behaviour"}, "availability": {"on_s": 1, "off_s": 1}}
    with pytest.raises(UsageError, match="not both"):
        Devices.build(table, 2, 0, traces)


# ---- documentation -------------------------------------------------------------------------------

PAGE = (Path(__file__).parents[3] / "docs" / "devices.md").read_text()


def test_the_numbers_on_the_page_are_correct(traces):
    for code in re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL):
        exec(code, {})
    plain, traced = re.findall(r"^```toml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    Devices.build(tomllib.loads(plain)["devices"], 10, seed=0)
    (traces / "capacity").rename(traces / "client_device_capacity")
    (traces / "behaviour").rename(traces / "client_behave_trace")
    Devices.build(tomllib.loads(traced)["devices"], 10, seed=0, folder=traces)
    with pytest.raises(UsageError) as refusal:
        built(upload_mbit_s={"distribution": "?"})
    named = re.search(r"Known: ([\w, ]+)\.", str(refusal.value))[1].split(", ")
    assert all(f"\n| `{name}` |" in PAGE for name in named)
