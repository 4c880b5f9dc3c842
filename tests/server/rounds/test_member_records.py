"""Records of members of open rounds, and their lifetime."""

from fedloom.server.ledger.member_summary import LATE
from fedloom.server.rounds.member_records import Records

KEY = ("run", 1)


def test_repeats_are_counted_as_retries():
    """Offers, resumed downloads, and uploads."""
    records = Records()
    records.offered(KEY, "oak", again=False)
    records.downloading(KEY, "oak", resumed=False)
    records.uploading(KEY, "oak")
    oak = records.find(KEY, "oak")
    assert oak.retries == 0
    began = oak.upload_began_at
    records.uploading(KEY, "oak")
    assert (oak.retries, oak.upload_began_at) == (1, began)
    records.downloading(KEY, "oak", resumed=True)
    records.offered(KEY, "oak", again=True)
    assert oak.retries == 3


def test_clients_without_an_offer_get_no_record():
    records = Records()
    records.downloading(KEY, "elm", resumed=True).bytes_down += 7
    records.downloading(None, "elm", resumed=False)
    records.uploading(KEY, "elm")
    records.refused(KEY, "elm", "malformed", "no")
    assert records.of(KEY) == {}


def test_records_of_ended_members_are_taken_once():
    """While their rounds continue; records of other runs are kept."""
    records = Records()
    for key, client in ((KEY, "oak"), (KEY, "elm"), (("run", 2), "ash"), (("other", 1), "fir")):
        records.offered(key, client, again=False)
        if client != "elm":
            records.accepted(key, client)
    taken = records.take_ended("run")
    assert {number: [*found] for number, found in taken.items()} == {1: ["oak"], 2: ["ash"]}
    assert records.take_ended("run") == {}
    assert [*records.of(KEY)] == ["elm"]
    assert [*records.of(("other", 1))] == ["fir"]


def test_an_accepted_update_clears_the_late_phase():
    records = Records()
    records.offered(KEY, "oak", again=False)
    records.withdrawn(KEY, "oak", LATE)
    assert records.find(KEY, "oak").phase == LATE
    records.accepted(KEY, "oak")
    assert "phase" not in records.find(KEY, "oak").stored()
