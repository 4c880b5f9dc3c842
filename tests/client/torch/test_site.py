"""A site of two processes computes the results of one process."""

import signal

import numpy as np
import pytest

from fedloom.client.training.ranks import Ranks, ranks
from fedloom.protocol.errors import UsageError
from support import site, site_cases

pytestmark = [pytest.mark.e2e, pytest.mark.long]

REFUSED = {
    "uneven": "multiple of this site's 2 ranks",
    "own model": "ditto",
    "unused": "extra",
    "throws": "marked",
    "norm of one": "more than one value",
}

RESUMED = {case: spec for case, spec in site_cases.CASES.items() if "resumes" in spec}


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """The results of two ranks for every case."""
    return site.run_cases(site_cases.CASES, tmp_path_factory.mktemp("site"))


def assert_close(got, wanted):
    """Check that nested values are equal to 1e-5."""
    if isinstance(wanted, dict):
        assert got.keys() == wanted.keys()
        for name in wanted:
            assert_close(got[name], wanted[name])
    elif wanted is None or isinstance(wanted, str):
        assert got == wanted
    else:
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("case", [c for c in site_cases.CASES if c not in REFUSED | RESUMED])
def test_two_ranks_give_the_results_of_one_process(found, case):
    """Parameters, metrics, evaluation and the rules' values are equal."""
    alone = site_cases.do(*site_cases.made(case))
    assert "failed" not in found[case], found[case]["failed"]
    assert "failed" not in alone
    assert_close(found[case], alone)


def test_two_ranks_train_with_an_optimizer_of_torch(tmp_path):
    """Each rank has an optimizer, with the same state."""
    found = site.run_cases(site_cases.LONG, tmp_path)
    for case in site_cases.LONG:
        assert_close(found[case], site_cases.do(*site_cases.made(case)))


def test_a_case_trains_something():
    """The comparison is not of unchanged parameters."""
    client, task = site_cases.made("plain")
    before = client.model[0].weight.detach().clone()
    assert "failed" not in site_cases.do(client, task)
    assert float((client.model[0].weight - before).detach().abs().max()) > 1e-2


@pytest.mark.parametrize(("case", "words"), REFUSED.items())
def test_an_unsupported_task_fails_and_the_site_continues(found, case, words):
    """The task fails on all ranks with an error; the next task succeeds."""
    assert words in found[case]["failed"]
    assert "failed" not in found["plain again"]


def test_a_failure_of_another_rank_is_reported(found):
    """Rank 0 raises the other rank's error."""
    assert "ValueError: a marked example" in found["throws"]["failed"]


@pytest.mark.parametrize("case", RESUMED)
def test_a_site_that_resumes_ends_with_the_same_bits(found, case):
    """On every rank, also with dropout, metrics and excluded tensors."""
    whole, again = found[case]["whole"], found[case]["again"]
    assert "failed" not in whole
    assert again == whole
    in_one_go, from_checkpoint = found[case]["calls"]
    assert from_checkpoint < in_one_go


def test_one_process_is_not_a_site():
    """Without a launcher there are no ranks."""
    assert ranks({}) is None
    assert ranks({"WORLD_SIZE": "1", "RANK": "0"}) is None


def test_an_incomplete_environment_is_refused():
    """All variables of the launcher are required."""
    whole = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "1"}
    assert ranks(whole) == Ranks(rank=1, size=2, local_rank=1)
    for name in ("RANK", "MASTER_PORT"):
        with pytest.raises(UsageError, match=name):
            ranks({n: v for n, v in whole.items() if n != name})
    with pytest.raises(UsageError, match="from 0 to 1"):
        ranks({**whole, "RANK": "2"})
    with pytest.raises(UsageError, match="whole numbers"):
        ranks({**whole, "RANK": "one"})


@pytest.mark.parametrize(
    ("told", "pause_s"), [([0, 1], 0.1), ([0], 0.0)], ids=["all", "rank 0 alone"]
)
def test_ranks_exit_without_an_error_after_a_signal(told, pause_s):
    """Rank 0 exits after the other ranks read its last order, so none of them waits for it."""
    ranks = site.start_each([("-m", "support.site_rank", pause_s)] * 2)
    for rank in ranks:
        while rank.stdout.readline() not in ("ready\n", ""):
            pass
    for number in told:
        ranks[number].send_signal(signal.SIGTERM)
    codes, outputs = site.finish(ranks)
    assert codes == [0, 0], "\n".join(outputs)
