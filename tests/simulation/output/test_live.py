"""The live display shows the state of a simulation and restores the terminal."""

import dataclasses
import io
import math
import sys
import types

import pytest
from rich.console import Console

from fedloom.simulation.output.panel import sparkline
from fedloom.simulation.output.progress import Progress
from fedloom.simulation.output.summary import summary
from support.histories import history, result


class Clock:
    """A clock that the test advances."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def _console(*, terminal=False, width=90):
    return Console(file=io.StringIO(), force_terminal=terminal, width=width, color_system=None)


def _panel(progress, width=90):
    console = _console(width=width)
    progress._console = console
    console.print(progress)
    return console.file.getvalue()


def test_without_a_terminal_each_round_is_a_line():
    console, clock = _console(), Clock()
    with Progress(4, console, name="digits", clock=clock) as progress:
        for record in history(4, abandoned={2}, test_every=3):
            clock.now += 2
            progress.working(1, 10)
            progress.update(record)
    lines = console.file.getvalue().splitlines()
    assert len(lines) == 4
    assert lines[0].startswith("round 1/4 · accuracy")
    assert "during training" in lines[0]
    assert lines[0].endswith("6.0 s left")
    assert lines[1] == "round 2 abandoned: Too few clients reported."
    assert "round 2/4" in lines[2]
    assert "during training" not in lines[2]
    assert "\x1b" not in "".join(lines)


def test_a_line_is_not_wrapped_or_marked_up():
    console = _console(width=40)
    record = dataclasses.replace(history(1, abandoned={1})[0], reason="[bold]" + "x" * 100)
    with Progress(1, console) as progress:
        progress.update(record)
    assert console.file.getvalue().splitlines() == [f"round 1 abandoned: [bold]{'x' * 100}"]


def test_the_display_can_be_disabled():
    console = _console(terminal=True)
    with Progress(2, console, show=False) as progress:
        progress.update(history(1)[0])
    assert console.file.getvalue() == ""


def test_the_panel_shows_round_metrics_speed_and_time():
    clock = Clock()
    progress = Progress(5, _console(), name="digits", engine="resident", clock=clock, show=False)
    with progress:
        for record in history(2):
            clock.now += 3
            progress.update(record)
        progress.working(4, 10)
        text = _panel(progress)
    for told in ("digits", "2 of 5", "accuracy", "loss", "clients/s", "client 4 of 10"):
        assert told in text
    assert "9.0 s left" in text
    assert "virtual time" in text
    assert "95% balanced" in text
    assert "resident" in text


def test_time_left_decreases_within_a_round():
    """The elapsed time of the open round is subtracted."""
    clock = Clock()
    with Progress(3, _console(), clock=clock, show=False) as progress:
        assert progress.state().left_s is None
        clock.now += 4
        progress.update(history(1)[0])
        assert progress.state().left_s == pytest.approx(8)
        clock.now += 3
        assert progress.state().left_s == pytest.approx(5)
        clock.now += 100
        assert progress.state().left_s == 0


def test_a_resumed_simulation_continues_the_count():
    clock = Clock()
    records = history(4)
    with Progress(4, _console(), before=records[:3], clock=clock, show=False) as progress:
        assert "3 of 4" in _panel(progress)
        progress.update(records[3])
        assert "4 of 4" in _panel(progress)


@pytest.mark.parametrize("width", [20, 48, 90, 300])
@pytest.mark.parametrize(
    "records",
    [
        (),
        history(1, workers=1),
        history(3, diverged_from=1),
        history(40, abandoned={40}, workers=300),
    ],
    ids=["none", "one", "diverged", "many workers"],
)
def test_the_panel_fits_any_terminal(records, width):
    progress = Progress(50, _console(), name="n" * 99, engine="e" * 200, before=records)
    lines = _panel(progress, width=width).splitlines()
    assert all(len(line) <= max(width, 26) for line in lines)
    assert len(lines) <= 10


def test_an_interrupted_display_restores_the_terminal():
    console = _console(terminal=True)

    def run():
        with Progress(5, console, name="digits") as progress:
            progress.update(history(1)[0])
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run()
    text = console.file.getvalue()
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")
    assert "1 of 5" in text


def test_a_notebook_has_one_updated_display(monkeypatch):
    shown = []

    class Handle:
        def update(self, drawn):
            shown.append(drawn)

    def display(drawn, *, display_id):
        shown.append(drawn)
        return Handle()

    module = types.ModuleType("IPython.display")
    module.display = display
    monkeypatch.setitem(sys.modules, "IPython", types.ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    console = _console()
    console.is_jupyter = True
    with Progress(1, console) as progress:
        progress.update(history(1)[0])
    assert len(shown) == 2
    assert console.file.getvalue() == ""
    assert hasattr(shown[-1], "_repr_mimebundle_")


def test_sparklines_show_shape_and_gaps():
    assert sparkline([], 10) == ""
    assert sparkline([1.0, 1.0], 10) == "▅▅"
    assert sparkline([0.0, math.nan, 1.0], 10) == "▁×█"
    assert len(sparkline(list(range(1000)), 40)) == 40


def test_the_summary_has_metrics_duration_and_folder(tmp_path):
    console = _console(width=300)
    records = history(30, abandoned={7})
    console.print(summary(result(records, folder=tmp_path, stopped="interrupted")))
    text = console.file.getvalue()
    assert f"{records[-1].test['accuracy']:.2%} on test examples" in text
    for told in ("29, and 1 abandoned", "stopped: interrupted", "resident: chosen", "virtual time"):
        assert told in text
    assert f"load_file('{tmp_path / 'model.safetensors'}')" in text


def test_the_summary_without_results_is_short():
    """A simulation may be stopped in its first round, and may store nothing."""
    console = _console()
    console.print(summary(result((), stopped="interrupted")))
    assert "load" not in console.file.getvalue()
    assert "stopped: interrupted" in console.file.getvalue()
