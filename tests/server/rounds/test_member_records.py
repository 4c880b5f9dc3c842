"""Records of members of open rounds, and their lifetime."""

from fedloom.server.ledger.member_summary import LATE
from fedloom.server.rounds.member_records import Records

KEY = ("run", 1)


def test_repeats_are_counted_as_retries():
    """Offers, resumed downloads, and uploads."""
    records = Records()
    records.offered(KEY, "oak", again=False)
    oak = records.find(KEY, "oak")
    oak.downloading(resumed=False)
    records.uploading(KEY, "oak")
    assert oak.retries == 0
    began = oak.upload_began_at
    records.uploading(KEY, "oak")
    assert (oak.retries, oak.upload_began_at) == (1, began)
    oak.downloading(resumed=True)
    records.offered(KEY, "oak", again=True)
    assert oak.retries == 3


def test_clients_without_an_offer_get_no_record():
    records = Records()
    records.uploading(KEY, "elm").bytes_up += 7
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


def test_a_member_that_got_its_model_with_its_offer_trains_from_its_answer_on():
    """Without an answer it does not train; where a gate, which sees no answers, from the model."""
    records = Records()
    for client in ("oak", "elm", "ash"):
        records.offered(KEY, client, again=False)
        records.find(KEY, client).given(7)
    records.took(KEY, "oak")
    records.uploading(KEY, "ash")
    oak, elm, ash = (records.find(KEY, name) for name in ("oak", "elm", "ash"))
    assert oak.training_began_at == oak.took_at is not None
    assert elm.stored() == {"bytes_down": 7, "bytes_up": 0, "retries": 0}
    assert ash.training_began_at == ash.given_at <= ash.upload_began_at
    assert {each.download_began_at for each in (oak, elm, ash)} == {None}
