"""A folder has one experiment, every round once, and no partial files."""

import csv
import json
import math
import subprocess
import sys
import tomllib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedloom.protocol.errors import IntegrityError, UsageError
from fedloom.protocol.settings import toml
from fedloom.protocol.tensors.container import read_params
from fedloom.simulation.output import metrics
from fedloom.simulation.output.environment import describe
from fedloom.simulation.output.files import OutputFolder
from fedloom.simulation.output.history import RoundRecord
from support.histories import history

SETTINGS = {"name": "digits", "rounds": 5, "seed": 7, "data": {"clients": 8}, "engine": {"w": 1}}


def _begun(path, records=(), settings=SETTINGS):
    with OutputFolder(path, resume=False) as folder:
        folder.configure(settings, settings)
        for record in records:
            folder.append(record)


def _rows(path):
    with (path / "metrics.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_rounds_survive_a_round_trip(tmp_path):
    records = list(history(5, abandoned={3}))
    _begun(tmp_path / "out", records)
    assert metrics.read(tmp_path / "out" / "metrics.jsonl") == records


def test_a_round_can_be_read_before_the_next_begins(tmp_path):
    with OutputFolder(tmp_path / "out", resume=False) as folder:
        for number, record in enumerate(history(3), start=1):
            folder.append(record)
            assert len(metrics.read(folder.path / "metrics.jsonl")) == number
            assert [row["round"] for row in _rows(folder.path)][-1] == str(number)


def test_non_finite_values_are_null_in_json_and_nan_in_csv(tmp_path):
    _begun(tmp_path / "out", history(4, diverged_from=2, test_every=2))
    lines = (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()
    values = [json.loads(line, parse_constant=pytest.fail)["test"] for line in lines]
    assert [value.get("loss", "absent") for value in values] == ["absent", None, "absent", None]
    assert [row["test.loss"] for row in _rows(tmp_path / "out")] == ["", "nan", "", "nan"]
    assert math.isnan(metrics.read(tmp_path / "out" / "metrics.jsonl")[1].test["loss"])


def test_numbers_of_numpy_are_written_as_numbers(tmp_path):
    """A user's own training loop may return them."""
    record = RoundRecord(
        round=1, trained=1, kind="train", state="committed", test={"loss": np.float32(0.5)}
    )
    _begun(tmp_path / "out", [record])
    assert metrics.read(tmp_path / "out" / "metrics.jsonl")[0].test == {"loss": 0.5}
    assert _rows(tmp_path / "out")[0]["test.loss"] == "0.5"


def test_columns_keep_their_order_when_a_metric_appears_late(tmp_path):
    """The table is rewritten once; earlier rounds have nothing in the new column."""
    with OutputFolder(tmp_path / "out", resume=False) as folder:
        for record in history(6, test_every=3):
            folder.append(record)
        rows = _rows(folder.path)
    names = list(rows[0])
    assert names[:4] == ["round", "trained", "kind", "state"]
    assert names.index("counts.reported") < names.index("training.loss") < names.index("test.loss")
    assert [bool(row["test.accuracy"]) for row in rows] == [False, False, True] * 2
    assert [row["round"] for row in rows] == list("123456")


def test_a_rewritten_table_equals_the_table_written_by_round(tmp_path):
    """A resumption rewrites the table with the same content."""
    _begun(tmp_path / "out", history(6, test_every=4, abandoned={2}))
    before = (tmp_path / "out" / "metrics.csv").read_bytes()
    with OutputFolder(tmp_path / "out", resume=True):
        pass
    assert (tmp_path / "out" / "metrics.csv").read_bytes() == before


def test_a_resumption_drops_the_rounds_after_the_checkpoint(tmp_path):
    records = history(5)
    _begun(tmp_path / "out", records)
    with OutputFolder(tmp_path / "out", resume=True) as folder:
        assert folder.resumed
        folder.configure(SETTINGS, SETTINGS)
        assert folder.cut(3) == list(records[:3])
        for record in records[3:]:
            folder.append(record)
        assert folder.records() == list(records)
        assert [row["round"] for row in _rows(folder.path)] == list("12345")


def test_an_incomplete_last_line_is_removed(tmp_path):
    """A process may die during a write."""
    records = history(3)
    _begun(tmp_path / "out", records)
    with (tmp_path / "out" / "metrics.jsonl").open("a") as file:
        file.write('{"round": 4, "trai')
    with OutputFolder(tmp_path / "out", resume=True) as folder:
        assert folder.records() == list(records)
        folder.append(records[-1])
        assert len(folder.records()) == 4


def test_a_damaged_earlier_line_is_refused(tmp_path):
    """Ignoring it would lose a round."""
    _begun(tmp_path / "out", history(2))
    path = tmp_path / "out" / "metrics.jsonl"
    path.write_text("nonsense\n" + path.read_text())
    with pytest.raises(IntegrityError, match="Line 1"):
        OutputFolder(tmp_path / "out", resume=True)


def test_a_folder_with_other_things_is_refused_untouched(tmp_path):
    """Even with resume = True."""
    (tmp_path / "thesis.tex").write_text("years")
    for resume in (False, True):
        with pytest.raises(UsageError, match=r"not empty.*thesis\.tex"):
            OutputFolder(tmp_path, resume=resume)
    assert [entry.name for entry in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_folder_with_results_is_not_overwritten(tmp_path):
    _begun(tmp_path / "out", history(2))
    with pytest.raises(UsageError, match=r"'digits', not finished.*--resume"):
        OutputFolder(tmp_path / "out", resume=False)
    with OutputFolder(tmp_path / "out", resume=True) as folder:
        folder.finish(rounds=2)
    with pytest.raises(UsageError, match="'digits', finished after 2 rounds"):
        OutputFolder(tmp_path / "out", resume=False)


def test_a_folder_without_rounds_can_be_used_again(tmp_path):
    """With other settings."""
    _begun(tmp_path / "out")
    _begun(tmp_path / "out", history(1), settings={**SETTINGS, "seed": 8})
    assert json.loads((tmp_path / "out" / "resolved.json").read_text())["seed"] == 8


def test_a_file_in_place_of_the_folder_is_refused(tmp_path):
    (tmp_path / "out").write_text("")
    with pytest.raises(UsageError, match="is a file"):
        OutputFolder(tmp_path / "out", resume=False)


def test_only_the_same_experiment_is_resumed(tmp_path):
    """Settings that change the bits must be equal; length and speed may differ."""
    _begun(tmp_path / "out", history(2))
    with OutputFolder(tmp_path / "out", resume=True) as folder:
        folder.configure(SETTINGS, {**SETTINGS, "rounds": 9, "engine": {"w": 4}})
        other = {**SETTINGS, "data": {"clients": 9}}
        with pytest.raises(UsageError, match=r"data\.clients = 8, not 9"):
            folder.configure(other, other)


def test_one_process_writes_at_a_time(tmp_path):
    first = OutputFolder(tmp_path / "out", resume=False)
    with pytest.raises(UsageError, match="Another simulation uses"):
        OutputFolder(tmp_path / "out", resume=True)
    first.close()
    OutputFolder(tmp_path / "out", resume=True).close()


def test_the_given_and_the_resolved_configuration_are_stored(tmp_path):
    text = '# mine\nname = "digits"\n'
    with OutputFolder(tmp_path / "out", resume=False) as folder:
        folder.configure(text, SETTINGS)
        assert (folder.path / "config.toml").read_text() == text
        assert json.loads((folder.path / "resolved.json").read_text()) == SETTINGS
        folder.configure(SETTINGS, SETTINGS)
        assert tomllib.loads((folder.path / "config.toml").read_text()) == SETTINGS
        environment = json.loads((folder.path / "environment.json").read_text())
        assert environment["packages"]["numpy"] == np.__version__
        assert environment["cpus"] >= 1


def test_the_model_survives_a_round_trip(tmp_path):
    params = {"w": np.arange(6, dtype=np.float32).reshape(2, 3)}
    with OutputFolder(tmp_path / "out", resume=False) as folder:
        assert len(folder.write_model(params)) == 64
        read = read_params(folder.path / "model.safetensors")
    np.testing.assert_array_equal(read["w"], params["w"])


def test_the_environment_does_not_name_the_machine():
    import platform

    assert platform.node() not in json.dumps(describe()).replace("localhost", "")


def test_the_environment_does_not_load_torch():
    code = (
        "import sys; from fedloom.simulation.output.environment import describe; describe(); "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


_values = st.recursive(
    st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)


@pytest.mark.long
@given(
    st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=5), _values).filter(
        lambda table: "\ud800" not in str(table)
    )
)
def test_settings_survive_a_round_trip_through_toml(table):
    assert tomllib.loads(toml.dumps(table)) == table
