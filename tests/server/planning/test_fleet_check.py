"""Which clients can take part in a new run: every reason, and that each client counts once."""

from hypothesis import given
from hypothesis import strategies as st

from fedloom.server.planning.fleet_check import KnownClient, check_fleet

MODEL = {"body": (4, 2), "head": (2,)}
OLD = {"body": (4, 2)}


def client(name, **known):
    return KnownClient(name=name, **{"shapes": MODEL, **known})


def texts(findings):
    return [finding.text for finding in findings]


def test_the_sentence_of_the_console():
    """As an operator reads it."""
    clients = [client(f"c{n}", shapes=OLD if n < 3 else MODEL) for n in range(12)]
    found = check_fleet(clients, MODEL, goal=8)
    assert found.summary == "9 of 12 clients can take part: 3 lack the tensor head."
    assert (found.total, found.able, found.online, found.is_enough) == (12, 9, 9, True)
    assert found.obstacles[0].clients == ("c0", "c1", "c2")
    found = check_fleet(clients, MODEL, goal=10)
    assert found.summary.endswith("lack the tensor head. A round waits for 10 (cohort.goal).")
    assert not found.is_enough


def test_every_obstacle_has_its_words():
    """In the singular, too; what keeps most clients out comes first."""
    clients = [
        client("a", hold="quarantine"),
        client("b", hold="drain"),
        client("c", cools=True),
        client("d", has_certificate=False),
        client("e", shapes={**MODEL, "tail": (1,)}),
        client("f", shapes={"body": (4, 3), "head": (2,)}),
        client("g", shapes={}),
        client("h", shapes={}),
        client("i", unfit=True),
    ]
    found = check_fleet(clients, MODEL, goal=1)
    assert texts(found.obstacles) == [
        "2 lack the tensors body and head",
        "1 checks in, and this run draws none that does (docs/check-in.md)",
        "1 cools off after failures",
        "1 has an expired certificate",
        "1 is drained",
        "1 is quarantined",
        "1 needs body of shape [4, 3], which the model has as [4, 2]",
        "1 needs the tensor tail, which the model lacks",
    ]
    assert found.able == 0


def test_remarks_are_of_able_clients_alone():
    """Offline, unknown, and what ended badly; none of them keeps a client out."""
    clients = [
        client("a", online=False),
        client("b", online=False, hold="drain"),
        client("c", shapes=None),
        client("d", remark=("failed its last task: no disk", "failed their last task: no disk")),
    ]
    found = check_fleet(clients, MODEL, goal=1)
    assert (found.able, found.online) == (3, 2)
    assert texts(found.remarks) == [
        "1 failed its last task: no disk",
        "1 has sent no update yet, so it is not known which model it trains",
        "1 is offline now",
    ]


def test_without_a_model_only_the_clients_status_counts():
    """And a server without clients says so."""
    found = check_fleet([client("a", shapes=OLD)], None, goal=1)
    assert found.summary == "1 of 1 client can take part."
    assert check_fleet([], MODEL, goal=1).summary == "No client has enrolled yet."


SHAPES = st.dictionaries(st.sampled_from("abc"), st.tuples(st.integers(0, 3)), max_size=3)
KNOWN = st.builds(
    KnownClient,
    name=st.uuids().map(str),
    online=st.booleans(),
    hold=st.sampled_from([None, "drain", "quarantine"]),
    cools=st.booleans(),
    has_certificate=st.booleans(),
    shapes=st.none() | SHAPES,
)


@given(st.lists(KNOWN, max_size=8, unique_by=lambda c: c.name), SHAPES)
def test_each_client_is_able_or_in_one_obstacle(clients, model):
    """A client that fits is one whose tensors are those of the model, or are not known."""
    found = check_fleet(clients, model, goal=1)
    out = [name for finding in found.obstacles for name in finding.clients]
    assert len(out) == len(set(out)) == found.total - found.able
    fits = {
        c.name
        for c in clients
        if c.hold is None and not c.cools and c.has_certificate and c.shapes in (None, model)
    }
    assert fits == {c.name for c in clients} - set(out)
