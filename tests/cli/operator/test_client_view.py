"""The table of clients, with and without SuperNodes among them."""

from rich.console import Console

from fedloom.cli.operator.client_view import listing, show_detail


def row(name, **own_labels):
    return {
        "name": name, "status": "active", "state": "idle", "hold": None, "online": True,
        "task": None, "certificate_until": 4e9, "enrolled_at": 1e9, "own_labels": own_labels,
        "success_rate": None, "success_level": None, "failures": 0, "last_error": None,
    }  # fmt: skip


def drawn(*rows):
    console = Console(width=200)
    with console.capture() as capture:
        console.print(listing({"clients": list(rows)}, "none"))
    return [line.split()[:3] for line in capture.get().splitlines() if line.strip()]


def test_supernodes_are_shown_as_such():
    """In a column that a server without them does not have."""
    both = drawn(row("a", kind="supernode"), row("b", kind="tablet"))
    assert both == [
        ["NAME", "KIND", "STATUS"], ["a", "supernode", "active"], ["b", "agent", "active"]
    ]  # fmt: skip
    assert drawn(row("a"))[0][:2] == ["NAME", "STATUS"]


def test_failing_clients_have_their_last_error():
    """In a column that a fleet without failures does not have; a level has a word."""
    last = {"text": "ValueError: no [examples]", "run": "digits-1", "round": 7, "at": 1e9}
    bad = row("b") | {
        "state": "failing", "failures": 4, "last_error": last, "success_rate": 0.04,
        "success_level": "bad",
    }  # fmt: skip
    console = Console(width=200)
    with console.capture() as capture:
        console.print(listing({"clients": [row("a"), bad]}, "none"))
    head, well, failing = [line for line in capture.get().splitlines() if line.strip()]
    assert "LAST ERROR" in head
    assert failing.split()[:2] == ["b", "failing"]
    assert "4% bad" in failing
    assert "ValueError: no [examples] (digits-1/7, " in failing
    assert "ValueError" not in well
    with console.capture() as capture:
        console.print(listing({"clients": [row("a")]}, "none"))
    assert "LAST ERROR" not in capture.get()


def test_the_readings_of_a_device(capsys):
    """What it does not report is left out."""
    gpu = {
        "name": "NVIDIA H200", "busy": 7.0, "memory_used_bytes": 1 << 29,
        "memory_total_bytes": 1 << 37, "temperature": None,
    }  # fmt: skip
    device = {
        "at": 1e9, "cpu": 41.6, "memory_used_bytes": None, "memory_total_bytes": None,
        "temperature": 61.4, "battery": 80.0, "mains": False, "gpus": [gpu],
    }  # fmt: skip
    rest = {
        "hold_reason": None, "seen_at": 1e9, "version": "1", "labels": {}, "note": None,
        "counted": 0, "asked": 0, "cools_until": None, "staleness": None, "device": device,
    }  # fmt: skip
    show_detail(row("a") | rest, [])
    text = capsys.readouterr().out
    assert "42 % of CPU, 61 °C, on battery, battery at 80 % (" in text
    assert "NVIDIA H200, 7 % busy, 512.0 MiB of 128.0 GiB of memory\n" in text


def test_a_run_that_draws_a_client_last_says_so(capsys):
    """In one line for each run; a server that does not know of it says nothing."""
    rest = {
        "hold_reason": None, "seen_at": 1e9, "version": "1", "labels": {}, "note": None,
        "counted": 0, "asked": 0, "cools_until": None, "staleness": None, "device": None,
    }  # fmt: skip
    words = "drawn last: it dropped out of its last 3 masking sessions"
    show_detail(row("a") | rest | {"conduct": [{"run": "digits-1", "words": words}]}, [])
    assert f"digits-1: {words}\n" in capsys.readouterr().out
    show_detail(row("a") | rest, [])
    assert "masking" not in capsys.readouterr().out
