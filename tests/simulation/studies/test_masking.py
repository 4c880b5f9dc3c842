"""The study of masking: its cases, what it compares, and its committed results."""

from dataclasses import replace

import pytest

from fedloom.protocol.errors import IntegrityError
from fedloom.simulation import config
from fedloom.simulation.output.history import Result, RoundRecord
from fedloom.simulation.studies import masking
from fedloom.simulation.studies.study import COMMITTED, StudyResults
from support.marks import sampled

RESULTS = StudyResults.read(COMMITTED / "masking")
WIDTHS = [row for row in masking.CASES if row.startswith("masked")]


def result(digest="a", **changed):
    record = RoundRecord(
        round=1, trained=1, kind="train", state="committed", reason="", cohort=20, accepted=20,
        examples=1, bytes_up=100, bytes_down=10, epsilon=2.0,
    )  # fmt: skip
    return Result(
        records=(replace(record, **changed),), params={}, digest=digest, folder=None,
        engine="", stopped="",
    )  # fmt: skip


def test_every_case_is_a_run_with_the_settings_of_its_row():
    for cell in masking.study(rounds=2).cells:
        spec = config.load({**cell.settings, "seed": 0}).spec
        made = spec.build_masking()
        assert (made is None) == (cell.row == masking.PLAIN)
        assert (spec.session_noise() is not None) == ("noise" in cell.row)
        if made is not None:
            assert f"{made.sum_bits} bits" in cell.row


def test_the_same_rounds_and_model_pass():
    """With noise: the same rounds, and another model."""
    masking.check_same(result(), result(), noise=False)
    masking.check_same(result("a"), result("b"), noise=True)


@pytest.mark.parametrize("noise", [False, True])
@pytest.mark.parametrize(
    "changed",
    [{"bytes_up": 101}, {"bytes_down": 11}, {"accepted": 19}, {"state": "abandoned"},
     {"epsilon": 3.0}],
)  # fmt: skip
def test_other_bytes_or_rounds_over_the_wire_are_errors(changed, noise):
    sent = result("b" if noise else "a", **changed)
    with pytest.raises(IntegrityError, match="bytes up"):
        masking.check_same(result("a"), sent, noise=noise)


def test_another_model_is_an_error_and_so_is_the_same_one_with_noise():
    """Devices' noise that somebody could repeat would be none."""
    with pytest.raises(IntegrityError, match="the same model"):
        masking.check_same(result("a"), result("b"), noise=False)
    with pytest.raises(IntegrityError, match="another model"):
        masking.check_same(result("a"), result("a"), noise=True)


@pytest.mark.long
@pytest.mark.e2e
@pytest.mark.parametrize("row", sampled([masking.QUICK[1], "32 bits, noise of 0.3 clips"], 2))
def test_a_case_is_measured_over_the_wire_and_simulated(row):
    """Real sessions of twenty processes: words of 32 bits, and few bytes beside them."""
    cell = next(each for each in masking.study(rounds=1).cells if each.row == row)
    run = masking.measure(cell, 0)
    size = 4 * (64 * 200 + 200 * 200 + 200 * 10 + 410)
    assert size <= run.values["body"] < size + 100
    assert run.values["body"] < run.values["up"] < 1.1 * size
    if "noise" not in row:
        assert run.values["wire_accuracy"] == run.values["accuracy"]


@pytest.mark.parametrize("data", ["digits", "mnist"])
def test_committed_results_support_the_claims(data):
    """Words cost no accuracy; a session takes a few kilobytes beside b/32 of float32."""

    def value(row, name):
        return RESULTS.entry(row, data, name).mean

    plain = value(masking.PLAIN, "accuracy")
    for row in WIDTHS:
        assert abs(value(row, "accuracy") - plain) < 0.002
        bits = int(row.split()[1])
        share = value(row, "body") / value(masking.PLAIN, "body")
        assert share == pytest.approx(bits / 32, abs=0.01)
        assert 0 < value(row, "up") - value(row, "body") < 10_000
