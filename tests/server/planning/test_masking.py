"""[masking] in a run's settings: what is refused, with which numbers, and what is shown."""

import dataclasses

import numpy as np
import pytest

from fedloom.protocol.errors import UsageError
from fedloom.protocol.manifest import Manifest
from fedloom.protocol.task_message import from_message, to_message
from fedloom.protocol.task_words import words_of
from fedloom.server.engine import RoundKind
from fedloom.server.planning import costs
from fedloom.server.planning import masking as planned
from fedloom.server.planning.spec import parse
from fedloom.server.planning.task import describe
from fedloom.strategies import TensorSpec
from fedloom.strategies.masking.sessions import sum_lines

RUN = {
    "cohort": {"goal": 20},
    "train": {"epochs": 1, "learning_rate": 0.1},
    "max_abs": 1.0,
    "weighting": "uniform",
    "masking": {"group": 64},
}
PRIVATE = {"clip": 1.0, "noise_multiplier": 1.0, "delta": 1e-5}
SHARED = {**PRIVATE, "mechanism": "distributed"}

REFUSED = {
    "an empty table": ({"masking": {}}, r"a setting in \[masking\]"),
    "an unknown setting": ({"masking": {"grup": 64}}, "Did you mean 'group'"),
    "a wrong type": ({"masking": {"group": "64"}}, "masking.group"),
    "a large group": ({"masking": {"group": 200}}, "masking.group <= 128"),
    "sum_bits at the top": ({"sum_bits": 32}, r"sum_bits in \[masking\].*Set masking\.sum_bits"),
    "precision at the top": ({"precision": 1.0}, r"Set masking\.precision"),
    "no metric of best": ({"best": {"metric": "f1", "mode": "max"}}, "metric of .best., f1, in"),
    "a small goal": ({"cohort": {"goal": 8}}, "cohort.quorum >= masking.min_group = 16, got 8"),
    "a small quorum": ({"cohort": {"goal": 20, "quorum": 4}}, "min_group = 16, got 4"),
    "sessions that are small": (
        {"masking": {"group": 20, "min_group": 12}, "cohort": {"goal": 30}},
        "min_group <= 10 with masking.group = 20, got 12: 21 finishers .* 11, 10",
    ),
    "bounds that are loose": (
        {"max_abs": 1024.0, "weighting": "examples"},
        r"0\.001024 .*16 = 2\^4 .* 1\.638e\+4: max_weight = 16 alone, or max_abs = 0\.0625",
    ),
    "few bits": (
        {"masking": {"sum_bits": 16}},
        r"0\.003906 = 2\^-8 .*Set masking\.sum_bits = 32, .* or masking\.precision = 0\.003907",
    ),
    "weights of the client's": (
        {"weighting": "client", "max_weight": 1.0},
        "steps over the smallest weight, 9.54e-07, of at most",
    ),
    "room of a metric": (
        {"masking": {"metrics": {"loss": 1e12}}},
        r"masking\.metrics\.loss < 2\.62\de\+05",
    ),
    "median": ({"aggregation": {"name": "median"}}, "the aggregation median with .masking."),
    "fltrust": (
        {"aggregation": {"name": "fltrust", "trusted": "a"}},
        "the aggregation fltrust with .masking.: it needs each update",
    ),
    "products of adapters": (
        {"adapters": {"aggregate": "product"}},
        "adapters.aggregate = product",
    ),
    "a codec": ({"compression": {"up": {"name": "int8"}}}, "compression.up = int8"),
    "a lossless codec": (
        {"compression": {"up": {"name": "lossless"}}},
        "compression.up = lossless",
    ),
    "buffers": (
        {"cohort": {"goal": 20, "mode": "buffered", "concurrency": 30, "quorum": 16}},
        "buffered",
    ),
    "values of each client": ({"metrics": {"per_client": True}}, "metrics.per_client = true"),
    "a histogram": ({"metrics": {"bins": 5}}, "metrics.bins = 5"),
    "a given histogram": ({"metrics": {"edges": {"loss": [0, 1]}}}, "metrics.edges"),
    "quantiles": ({"metrics": {"quantiles": [0.5]}}, r"metrics\.quantiles with \[masking\]"),
    "selection by loss": (
        {"selection": {"name": "power_of_choice"}},
        "power_of_choice with .masking.: it learns from each client's examples and loss",
    ),
    "oort": ({"selection": {"name": "oort"}}, "selection.name = oort"),
    "selection by size": ({"selection": {"name": "size"}}, "selection.name = size"),
    "selection by label": (
        {"selection": {"name": "stratified", "label": "region"}},
        "each client's label",
    ),
    "central noise": (
        {"privacy": PRIVATE, "evaluate": False},
        r"privacy.mechanism = dp_fedavg with \[masking\]: the noise of a session is of its devices",
    ),
    "correlated noise": (
        {"privacy": {**PRIVATE, "mechanism": "dp_ftrl", "restart_every": 4}, "evaluate": False},
        r"privacy.mechanism = dp_ftrl with \[masking\]",
    ),
    "local noise": (
        {"privacy": {**PRIVATE, "mechanism": "local"}, "evaluate": False},
        r"privacy.mechanism = local with \[masking\]",
    ),
    "noise of sessions without them": (
        {"privacy": SHARED, "masking": None},
        r"Expected \[masking\] with privacy.mechanism = distributed",
    ),
    "sampling": (
        {"privacy": {**SHARED, "sampling": "poisson", "population": 100}},
        'sampling = "none" with mechanism = "distributed"',
    ),
    "an adaptive clip": ({"privacy": {**SHARED, "clip_quantile": 0.5}}, "no clip_quantile"),
    "precision beside noise": (
        {"privacy": SHARED, "masking": {"precision": 1e-3}},
        r"no masking.precision with \[privacy\]",
    ),
    "noise of few steps": (
        {"privacy": {**SHARED, "noise_multiplier": 0.02}, "masking": {"sum_bits": 16}},
        r"at least 4 steps .* got 1\.0\d steps .*Use masking\.sum_bits = 24",
    ),
    "weights beside noise": (
        {"privacy": SHARED, "weighting": "examples"},
        r"weighting = .uniform. with \[privacy\]",
    ),
    "metrics beside noise": ({"privacy": SHARED, "evaluate": True}, "evaluate = false"),
    "tensors that are drawn": (
        {"train": {"epochs": 1, "learning_rate": 0.1, "tensor_share": 0.5}},
        "train.tensor_share with .masking.: values that few members send",
    ),
    "clusters": ({"strategy": {"name": "ifca", "clusters": 2}}, "the strategy ifca with .masking."),
    "few bits for quotients": (
        {"strategy": {"name": "fednova"}, "weighting": "examples", "max_weight": 9.0},
        r"client rule fednova.*Set masking\.sum_bits = 64",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_work_is_refused_by_name(case):
    change, match = REFUSED[case]
    with pytest.raises(UsageError, match=match):
        parse({**RUN, **change})


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"masking": {"group": 20, "min_group": 10}, "cohort": {"goal": 60}},
        {"masking": {"sum_bits": 64}, "max_abs": 1024.0, "weighting": "examples"},
        {"masking": {"sum_bits": 16, "precision": 0.01}},
        {"strategy": {"name": "scaffold", "clients": 50}, "weighting": "uniform"},
        {"strategy": {"name": "fednova"}, "weighting": "examples", "masking": {"sum_bits": 64}},
        {"strategy": {"name": "fedadam"}},
        {"train": {"epochs": 1, "learning_rate": 0.1, "widths": [1.0, 0.5]}},
        {"train": {"epochs": 1, "learning_rate": 0.1, "only": ["head*"]}},
        {"personal": {"keep": ["head*"]}},
        {"compression": {"down": {"name": "int8"}}},
        {"selection": {"name": "sticky"}},
        {"selection": {"name": "deadline"}},
        {"best": {"metric": "accuracy"}},
        {"metrics": {"quantiles": []}},
        {"evaluate_only": True},
        {"privacy": SHARED},
        {"privacy": SHARED, "masking": {"sum_bits": 16}},
        {"privacy": SHARED, "masking": {"sum_bits": 64}, "max_abs": 1024.0},
        {"privacy": SHARED, "strategy": {"name": "fedadam"}},
    ],
)  # fmt: skip
def test_what_works_is_taken_and_kept(change):
    spec = parse({**RUN, **change})
    assert parse(spec.as_dict()) == spec
    assert spec.round_config().quorum == spec.build_masking().min_group


def test_the_named_bounds_are_accepted():
    """Those of the refusal of loose bounds."""
    loose = {**RUN, "max_abs": 1024.0, "weighting": "examples"}
    parse({**loose, "max_weight": 16})
    for change in ({"weighting": "uniform"}, {"masking": {"sum_bits": 64}},
                   {"masking": {"precision": 16.01}},
                   {"max_abs": 0.0625, "masking": {"precision": 0.001024}}):  # fmt: skip
        parse({**loose, **change})


def test_a_run_of_64_bits_has_the_grid_of_unmasked_sums():
    """For any goal, with a group that more than a round's updates cannot fill."""
    for goal in (16, 20, 100, 1000):
        for group in (16, 64, 128):
            masking = {"sum_bits": 64, "group": group, "min_group": 8, "precision": 1.0}
            shared = {**RUN, "cohort": {"goal": goal, "quorum": 16}, "max_abs": 3.7}
            masked = parse({**shared, "masking": masking})
            plain = parse({**shared, "masking": None, "sum_bits": 64})
            assert masked.exponent() == plain.exponent() or group > masked.capacity
            assert masked.is_narrow


def test_the_grid_is_that_of_the_specification():
    """s_b = min((b−2) − ⌈log2(max_abs · max_weight · group)⌉, 62 − ⌈log2(max_abs · W)⌉)."""
    spec = parse({**RUN, "weighting": "examples", "max_weight": 600.0, "max_abs": 0.5,
                  "cohort": {"goal": 1000}, "masking": {"precision": 1.0}})  # fmt: skip
    assert spec.exponent() == 30 - 15  # 0.5 · 600 · 64 = 19,200 < 2^15
    wide = parse({**spec.as_dict(), "masking": {"sum_bits": 64, "precision": 1.0}})
    assert wide.exponent() == 62 - 20  # 0.5 · 600 · 2064 = 619,200 < 2^20


def test_what_is_shown_has_every_number():
    facts = parse({**RUN, "cohort": {"goal": 100}}).sum_facts()
    assert (facts["bits"], facts["exponent"], facts["session"]) == (32, 24, 64)
    assert facts["bound"] == 2**30 + 32
    assert facts["precision"] == 1e-6
    assert facts["masking"]["sessions"] == [
        {"members": 16, "threshold": 11, "drop_outs": 5, "colluders": 5},
        {"members": 64, "threshold": 43, "drop_outs": 21, "colluders": 21},
    ]
    lines = sum_lines(facts)
    assert lines[0].endswith("in sessions of 16 to 64 devices")
    assert lines[-1].startswith("session of 64: threshold 43")


def test_servers_refuse_masked_runs_that_they_do_not_run():
    """Without TLS nobody knows who is in a session."""
    masking = parse(RUN).build_masking()
    planned.check_deployed(None, tls=False)
    planned.check_deployed(masking)
    with pytest.raises(UsageError, match="Expected a server with TLS"):
        planned.check_deployed(masking, tls=False)


@pytest.mark.parametrize(
    ("bits", "weighting", "expected"),
    [(32, "uniform", 80 + 80), (64, "examples", 160 + 88), (24, "uniform", 64 + 80)],
)
def test_bytes_of_a_masked_update(bits, weighting, expected):
    """20 values of b bits, padded to 8 bytes, then the weight, and five words for each kind."""
    specs = {"w": TensorSpec(shape=(4, 4), dtype=np.dtype("f4")),
             "b": TensorSpec(shape=(4,), dtype=np.dtype("f4"))}  # fmt: skip
    manifest = Manifest(dtypes=dict.fromkeys(specs, "F32"), specs=specs, size_bytes=200)
    masking = {"sum_bits": bits, "precision": 1.0}
    spec = parse({**RUN, "weighting": weighting, "max_weight": 9.0, "masking": masking})
    task = describe(spec, run="r", number=1, trained=0, kind=RoundKind.TRAIN, clip=0.0)
    masked = bits, spec.masked_words()
    assert costs.upload_bytes(task, manifest, masked=masked) == expected
    alone = spec.masked_words(trains=False)
    evaluation = dataclasses.replace(task, kind=RoundKind.EVALUATE)
    assert costs.upload_bytes(evaluation, manifest, masked=(bits, alone)) == 8 * 5


@pytest.mark.parametrize("kind", RoundKind)
@pytest.mark.parametrize("weighting", ["examples", "uniform"])
def test_a_device_knows_the_sum_and_the_words_from_its_task(kind, weighting):
    """From the task alone it has the grid and the words of the server."""
    masking = {"sum_bits": 24, "precision": 1.0}
    spec = parse({**RUN, "weighting": weighting, "max_weight": 9.0, "masking": masking})
    task = describe(spec, run="r", number=4, trained=0, kind=kind, clip=0.0)
    grid = spec.grid()
    assert task.masking is not None
    assert (task.masking.sum_bits, task.masking.exponent) == (grid.bits, grid.exponent)
    assert task.masking.group == spec.build_masking().group
    assert task.masking.run_seed == spec.seed
    ours = spec.masked_words(trains=task.train, evaluates=task.evaluates)
    assert words_of(from_message(to_message(task))) == ours
