"""Durations, sizes and tables as text."""

import click
import pytest

from fedloom.cli.common import output
from fedloom.cli.common.options import Duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("90s", 90), ("15m", 900), ("15 min", 900), ("24h", 86400), ("1.5h", 5400),
     ("7d", 604800), ("2w", 1209600), (" 5H ", 18000), (3, 3)],
)  # fmt: skip
def test_durations_are_read(text, seconds):
    """A number without a unit is in seconds."""
    assert Duration().convert(text, None, None) == seconds


@pytest.mark.parametrize("text", ["", "x", "5y", "-3s", "1h30m", "inf", "1e3", "9" * 400])
def test_other_durations_are_refused(text):
    """The error shows an example."""
    with pytest.raises(click.BadParameter, match="24h"):
        Duration().convert(text, None, None)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 ms"), (0.0004, "0 ms"), (0.9994, "999 ms"), (0.9996, "1.0 s"), (59.94, "59.9 s"),
     (59.96, "1 min 00 s"), (125, "2 min 05 s"), (3599.6, "1 h 00 min"), (86399, "23 h 59 min"),
     (86400, "1 d 00 h"), (604799, "6 d 23 h"), (-5, "-5.0 s")],
)  # fmt: skip
def test_durations_are_written_in_two_units(seconds, text):
    """The smaller unit is carried over, so 60 s is 1 min."""
    assert output.duration(seconds) == text


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (40_000_000, "38.1 MiB"),
     (1024**2 - 1, "1.0 MiB"), (5 * 1024**4, "5.0 TiB"), (2 * 1024**5, "2048.0 TiB")],
)  # fmt: skip
def test_sizes_are_written_in_binary_units(num_bytes, text):
    """Sizes have one decimal."""
    assert output.size(num_bytes) == text


def test_metrics_are_sorted_by_name():
    """Without metrics the text is empty."""
    measured = {"num_examples": 3, "values": {"loss": 0.123456, "accuracy": 0.9}}
    assert output.metrics(measured) == "accuracy 0.9  loss 0.1235"
    assert output.metrics(None) == output.metrics({}) == ""


def test_a_mean_that_disagrees_is_marked():
    """On request with the quartiles of all metrics; rounds of earlier versions have none."""
    measured = {
        "values": {"loss": 0.001, "accuracy": 0.5},
        "quantiles": {
            "loss": {"0.25": 1.5, "0.5": 2.0, "0.75": 3.0},
            "accuracy": {"0.1": 0.2, "0.5": 0.5, "0.9": 0.8},
        },
        "disagree": ["loss"],
    }
    assert output.metrics(measured) == "accuracy 0.5  loss 0.001 (median 2: disagrees)"
    wide = "loss 0.001 (median 2, half of the clients 1.5 to 3: disagrees)"
    assert output.metrics(measured, spread=True) == f"accuracy 0.5  {wide}"
    assert output.metric(measured, "accuracy") == "0.5"
    assert output.metric(measured, "f1") == "-"


def test_tables_show_whole_cells_as_plain_text(capsys, monkeypatch):
    """Brackets in cells are not markup, and a narrow terminal truncates nothing."""
    monkeypatch.setenv("COLUMNS", "20")
    output.print_table(
        ("NAME", ">SIZE", "~REASON"),
        [("a-name-longer-than-the-terminal", "1.0 KiB", output.escape("[red]w[3] is NaN[/] \\"))],
        "none",
    )
    shown = capsys.readouterr().out
    assert "a-name-longer-than-the-terminal   1.0 KiB   [red]w[3] is NaN[/] \\" in shown
    assert not any(line.endswith(" ") for line in shown.splitlines())


def test_control_characters_are_escaped(capsys):
    """Texts from devices cannot control the terminal or reverse the reading order."""
    words = output.escape("\x1b[2J\x9b31m\u202eevil ward-ü")
    output.print_table(("NOTE",), [(words,)], "none")
    shown = capsys.readouterr().out
    assert "\\x1b[2J\\x9b31m\\u202eevil ward-ü" in shown


def test_empty_tables_print_a_text(capsys):
    """The text replaces the header."""
    output.print_table(("A",), [], "Nothing yet: do this.")
    assert capsys.readouterr().out == "Nothing yet: do this.\n"
