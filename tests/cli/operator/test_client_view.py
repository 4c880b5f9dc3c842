"""The table of clients, with and without SuperNodes among them."""

from rich.console import Console

from fedloom.cli.operator.client_view import listing


def row(name, **own_labels):
    return {
        "name": name, "status": "active", "hold": None, "online": True, "task": None,
        "certificate_until": 4e9, "enrolled_at": 1e9, "own_labels": own_labels,
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
