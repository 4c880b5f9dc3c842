"""How often rounds asked clients, by a label: against a count in Python over random ledgers."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedloom.server.ledger import Ledger
from fedloom.server.ledger.directory import Seen
from fedloom.server.ledger.lists.client_values import LabelShare
from fedloom.server.ledger.tables import cohorts, rounds, runs

NAMES = "abcdef"
VALUES = st.sampled_from([None, "north", "south"])
PHASES = st.sampled_from(["reported", "declined", "offered"])

scenes = st.fixed_dictionaries(
    {
        "own": st.fixed_dictionaries(dict.fromkeys(NAMES, VALUES)),
        "set": st.fixed_dictionaries(dict.fromkeys(NAMES, VALUES)),
        "revoked": st.sets(st.sampled_from(NAMES)),
        "parts": st.dictionaries(
            st.tuples(st.sampled_from(["r1", "r2"]), st.integers(1, 3), st.sampled_from(NAMES)),
            PHASES,
        ),
    }
)


def stored(folder, scene):
    """A ledger with these labels and parts."""
    ledger = Ledger.in_directory(folder)
    for name in NAMES:
        ledger.add_token(name, "hash", name, 4e9)
        ledger.enrol(name, f"serial-{name}", 4e9)
        own, given = scene["own"][name], scene["set"][name]
        labels = {"site": own} if own else {}
        ledger.saw({name: Seen(at=1.0, version="1", labels=labels | {"other": "x"})})
        if given:
            ledger.set_labels(name, {"site": given})
    for name in scene["revoked"]:
        ledger.revoke(name)
    with ledger._write() as connection:
        for run in ("r1", "r2"):
            connection.execute(
                runs.insert().values(id=run, name=run, spec={}, state="running", model="m",
                                     created_at=1.0, last_round=3, committed=3, study=run[-1])
            )  # fmt: skip
            for number in (1, 2, 3):
                connection.execute(
                    rounds.insert().values(run=run, number=number, kind="train", state="committed",
                                           opened_at=1.0, deadline_at=2.0, model_in="m")
                )  # fmt: skip
        for (run, number, name), phase in scene["parts"].items():
            connection.execute(
                cohorts.insert().values(run=run, round=number, client=name, phase=phase)
            )
    return ledger


def counted(scene, of_runs):
    """The same by hand."""
    number, asked, done = Counter(), Counter(), Counter()
    value = {name: scene["set"][name] or scene["own"][name] for name in NAMES}
    active = [name for name in NAMES if name not in scene["revoked"]]
    for name in active:
        number[value[name]] += 1
    for (run, _, name), phase in scene["parts"].items():
        if name in active and run in of_runs:
            asked[value[name]] += 1
            done[value[name]] += phase == "reported"
    return {LabelShare(v, number[v], asked[v], done[v]) for v in number}


@pytest.mark.long
@settings(max_examples=30, deadline=None)
@given(scenes)
def test_shares_are_those_that_one_counts_by_hand(tmp_path_factory, scene):
    """An operator's label hides the device's own; revoked clients and other runs do not count."""
    ledger = stored(tmp_path_factory.mktemp("ledger"), scene)
    try:
        found = ledger.label_shares("site")
        assert len(set(found)) == len(found)
        assert set(found) == counted(scene, ("r1", "r2"))
        assert [each.clients for each in found] == sorted(
            (each.clients for each in found), reverse=True
        )
        assert set(ledger.label_shares("site", "r1")) == counted(scene, ("r1",))
        of_study = ledger.label_shares("site", studies=["1"])
        assert not of_study, "no client is of that study"
    finally:
        ledger.close()
