"""docs/client.md: its table matches the declared settings."""

from pathlib import Path

from fedloom.client import config

PAGE = Path(__file__).parents[2] / "docs" / "client.md"


def test_the_table_matches_the_declared_settings():
    """`print(config.table())` regenerates it."""
    text = PAGE.read_text()
    _, _, after = text.partition("<!-- settings -->\n")
    table, _, _ = after.partition("\n<!-- end of settings -->")
    assert table.strip() == config.table().strip()
