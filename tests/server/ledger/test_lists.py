"""Lists of the ledger: every order against Python's own sorting, pages without gaps, filters."""

import math
from random import Random

import pytest

from fedloom.protocol.errors import UsageError
from fedloom.server.ledger import Ledger, tables
from fedloom.server.ledger.audit_trail import Filter
from fedloom.server.ledger.lists.order import Cut
from support.big_ledger import RUN, fill, name_of

ROUNDS = 30


@pytest.fixture(scope="module")
def ledger(tmp_path_factory):
    """A ledger with a run, some of whose rounds have odd metrics."""
    folder = tmp_path_factory.mktemp("lists")
    spec = {"rounds": ROUNDS, "cohort": {}, "strategy": {"name": "fedavg"}}
    fill(folder, num_rounds=ROUNDS, cohort=20, num_clients=60, spec=spec)
    ledger = Ledger.in_directory(folder)
    odd = {3: math.nan, 7: math.inf, 11: -math.inf}
    with ledger._write() as connection:
        for number, loss in odd.items():
            its = tables.rounds.update().filter_by(run=RUN, number=number)
            values = {"values": {"loss": loss, "accuracy": 0.5 + number / 100}}
            connection.execute(its.values(evaluation=values, training={}))
        its = tables.rounds.update().filter_by(run=RUN, number=20)
        connection.execute(its.values(evaluation=None, training=None, undone_at=5.0))
        for index in range(3):
            run = {"id": f"past-{index}", "name": "past", "spec": {"rounds": 1}, "state": "failed",
                   "created_at": 1.0 + index, "model": "m", "reason": ""}  # fmt: skip
            connection.execute(tables.runs.insert(), [run])
    yield ledger
    ledger.close()


def expected(rows, value, *, descending):
    """Rows in the list's own order, sorted in Python: those without a value last."""
    known = [r for r in rows if value(r) is not None and not math.isnan(value(r))]
    known.sort(key=value, reverse=descending)
    return known + [r for r in rows if r not in known]


def metric(row, name):
    for found in (row.evaluation, row.training):
        value = ((found or {}).get("values") or {}).get(name)
        if value is not None and math.isfinite(value):
            return value
    return None


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize(
    ("sort", "value"),
    [
        ("round", lambda r: r.number),
        ("counted", lambda r: r.summary["counted"]),
        ("p95_s", lambda r: r.summary["p95_s"]),
        ("bytes_up", lambda r: r.summary["bytes_up"]),
        ("metric.loss", lambda r: metric(r, "loss")),
        ("metric.accuracy", lambda r: metric(r, "accuracy")),
        ("metric.unknown", lambda _: None),
    ],
)
def test_rounds_are_sorted_like_in_python(ledger, sort, value, descending):
    """Also by metrics that are not numbers in some rounds; equal ones keep the list's order."""
    every = ledger.listed_rounds(RUN, Cut())
    assert [r.number for r in every] == list(range(ROUNDS, 0, -1))
    found = ledger.listed_rounds(RUN, Cut(sort=sort, descending=descending))
    assert [r.number for r in found] == [
        r.number for r in expected(every, value, descending=descending)
    ]


def test_pages_hold_every_row_once(ledger):
    """Whatever the order, with many equal values."""
    for sort in ("", "state", "counted", "lost", "metric.loss"):
        pages = [
            ledger.listed_rounds(RUN, Cut(sort=sort, offset=offset, limit=7))
            for offset in range(0, ROUNDS + 7, 7)
        ]
        numbers = [r.number for page in pages for r in page]
        assert sorted(numbers) == list(range(1, ROUNDS + 1)), sort
        assert numbers == [r.number for r in ledger.listed_rounds(RUN, Cut(sort=sort))]


def test_rounds_have_their_updates_in_every_order(ledger):
    """Of far-apart rounds on one page too."""
    known = {r.number: r.accepted for r in ledger.list_rounds(RUN)}
    found = ledger.listed_rounds(RUN, Cut(sort="lost", limit=5))
    assert {r.number: r.accepted for r in found} == {r.number: known[r.number] for r in found}


def test_rounds_are_filtered_by_state(ledger):
    undone = ledger.listed_rounds(RUN, Cut(), state="undone")
    assert [r.number for r in undone] == [20]
    assert len(ledger.listed_rounds(RUN, Cut(), state="committed")) == ROUNDS - 1
    assert ledger.listed_rounds(RUN, Cut(), state="abandoned") == []


def test_runs_have_their_latest_metrics(ledger):
    """And none where no round committed."""
    first = ledger.listed_runs(Cut(sort="metric.loss"))
    assert [r.id for r in first] == [RUN, "past-2", "past-1", "past-0"]
    last = max(r.number for r in ledger.list_rounds(RUN))
    assert first[0].evaluation == ledger.round(RUN, last).evaluation
    assert (first[1].evaluation, first[1].training) == (None, None)


def test_runs_are_found_by_part_of_the_id_and_state(ledger):
    """The text is literal."""
    assert [r.id for r in ledger.listed_runs(Cut(), text="PAST-1")] == ["past-1"]
    assert ledger.listed_runs(Cut(), text="%") == []
    assert len(ledger.listed_runs(Cut(), state="failed")) == 3
    assert ledger.run_states() == {"failed": 3, "finished": 1}


def test_models_have_the_evaluation_of_the_round_that_began_with_them(ledger):
    """Newest first; the last one has none yet."""
    found = ledger.listed_models(Cut())
    assert [m.round for m in found] == list(range(ROUNDS, 0, -1))
    rounds = {r.model_in: r for r in ledger.list_rounds(RUN)}
    for model in found:
        its = rounds.get(model.digest)
        wanted = its.evaluation if its is not None else None
        assert str(model.evaluation) == str(wanted)  # NaN differs from itself
    ledger.promote(found[4].digest)
    assert [m.promoted for m in ledger.listed_models(Cut())].index(True) == 4
    assert ledger.listed_models(Cut(sort="state"))[0].promoted


def test_tokens_are_filtered_and_sorted(ledger):
    found = ledger.listed_tokens(Cut(sort="client", descending=True, limit=2), state="used")
    assert [t.client for t in found] == [name_of(59), name_of(58)]
    assert [t.client for t in ledger.listed_tokens(Cut(), text="00007")] == [name_of(7)]
    assert list(ledger.listed_tokens(Cut(), state="unused")) == []


def test_audit_is_sorted(ledger):
    for number in range(5):
        ledger.trail.append("ada" if number % 2 else "eve", "token", "run.note", RUN, {"n": number})
    found = ledger.trail.listed(Filter(), Cut(sort="who"))
    assert [(e["who"], e["id"]) for e in found] == [
        ("ada", 4), ("ada", 2), ("eve", 5), ("eve", 3), ("eve", 1),
    ]  # fmt: skip


def test_values_of_clients_are_those_of_their_details(ledger):
    """Each column, against the rows that pages show."""
    rows = ledger.look_up([name_of(i) for i in range(60)])
    for column in ("asked", "counted", "success_rate", "staleness", "last_counted_at"):
        values = ledger.client_values(column)
        for row in rows:
            phases = row.phases
            ended = sum(phases.values()) - phases.get("declined", 0)
            wanted = {
                "asked": sum(phases.values()),
                "counted": phases.get("reported", 0),
                "success_rate": phases.get("reported", 0) / ended if ended else None,
                "staleness": row.staleness,
                "last_counted_at": row.last_counted_at,
            }[column]
            assert values.get(row.name) == (pytest.approx(wanted) if wanted else wanted), column


ODD = ("accuracy, class 1", "it's", "a{b}", "NaN rate", "x: Infinity", " lead", "100 %", "x&y=1#")


def test_metrics_of_any_name_sort(ledger):
    """Clients choose their names; a name that reads like a number that is not finite, too."""
    with ledger._write() as connection:
        for place, number in enumerate((2, 9, 5)):
            values = {name: place + index / 10 for index, name in enumerate(ODD)}
            its = tables.rounds.update().filter_by(run=RUN, number=number)
            values["loss"] = math.nan
            connection.execute(its.values(evaluation={"values": values}))
    for name in ODD:
        page = Cut(sort=f"metric.{name}", descending=True, limit=3)
        assert [r.number for r in ledger.listed_rounds(RUN, page)] == [5, 9, 2], name


def test_unknown_columns_are_refused(ledger):
    for sort in ("nothing", 'metric.a"b', "metric.a\\b", "id; drop table runs"):
        with pytest.raises(UsageError, match=r"Expected a (column|metric)"):
            ledger.listed_runs(Cut(sort=sort))
    with pytest.raises(ValueError, match="column of clients"):
        ledger.client_values("nothing")


@pytest.mark.parametrize("seed", range(3))
def test_random_pages_agree_with_the_whole_list(ledger, seed):
    draw = Random(seed)
    for _ in range(20):
        cut = {
            "sort": draw.choice(["", "state", "round", "late"]),
            "descending": draw.random() < 0.5,
        }
        offset, limit = draw.randrange(35), draw.randrange(1, 10)
        whole = ledger.listed_rounds(RUN, Cut(**cut))
        page = ledger.listed_rounds(RUN, Cut(**cut, offset=offset, limit=limit))
        assert [r.number for r in page] == [r.number for r in whole[offset : offset + limit]]


def test_bytes_of_curves_are_of_all_rounds_so_far(ledger):
    """Undone and abandoned ones too, which are no points of a curve."""
    spent, wanted = 0, {}
    for row in ledger.list_rounds(RUN):
        spent += row.summary["bytes_up"] + row.summary["bytes_down"]
        wanted[row.number] = spent
    points = ledger.curve_rows(RUN)
    assert 20 not in [point.number for point in points]
    assert [p.bytes_so_far for p in points] == [wanted[p.number] for p in points]
    last = ledger.last_curve_rows(RUN, 3)
    assert [p.bytes_so_far for p in last] == [wanted[p.number] for p in points[-3:]]
