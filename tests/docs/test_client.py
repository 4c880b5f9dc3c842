"""docs/client.md: its table is what the settings declare."""

from pathlib import Path

from fedloom.client import config

PAGE = Path(__file__).parents[2] / "docs" / "client.md"


def test_the_table_is_what_is_declared():
    """`print(config.table())` makes it anew."""
    text = PAGE.read_text()
    _, _, after = text.partition("<!-- settings -->\n")
    table, _, _ = after.partition("\n<!-- end of settings -->")
    assert table.strip() == config.table().strip()
