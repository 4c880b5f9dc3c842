"""Two settings of server.toml are changed in place: the rest of the file stays, byte for byte."""

from dataclasses import replace

import pytest

from fedloom.protocol.errors import UsageError
from fedloom.server.config import ServerConfig, load, rewrite, write

DATABASE, STORE = "postgresql+psycopg://db/fedloom", "s3://bucket/prefix"
TABLES = '\n# of ours\n[clients]\ncool_off_s = 7.0\n\n[flower]\nstore = "strategies.py:store"\n'


@pytest.fixture
def state(tmp_path):
    write(tmp_path, ServerConfig(federation="ward"))
    with (tmp_path / "server.toml").open("a") as file:
        file.write(TABLES)
    return tmp_path


def change(state, **values):
    after = replace(load(state), **values)
    rewrite(state, after, tuple(values))
    return after


def test_only_these_lines_change(state):
    """Comments and tables stay, also a key of the same name in a table."""
    before = (state / "server.toml").read_text().splitlines()
    after = change(state, database=DATABASE, store=STORE)
    lines = (state / "server.toml").read_text().splitlines()
    changed = [new for old, new in zip(before, lines, strict=True) if old != new]
    assert changed == [f'database = "{DATABASE}"', f'store = "{STORE}"']
    assert load(state) == after
    assert (state / "server.toml").stat().st_mode & 0o077 == 0


def test_missing_lines_are_added(state):
    """A file that an operator wrote has only what differs."""
    (state / "server.toml").write_text(f'federation = "ward"{TABLES}')
    after = change(state, database=DATABASE, store=STORE)
    assert load(state) == after
    assert (state / "server.toml").read_text().endswith(TABLES)


def test_back_to_nothing(state):
    """Empty texts are settings, too."""
    change(state, database=DATABASE, store=STORE)
    change(state, database="", store="")
    assert (load(state).database, load(state).store) == ("", "")


def test_a_file_that_cannot_be_changed_so_is_refused(state):
    """It stays as it was."""
    text = 'federation = "ward"\ndatabase = """\n"""\n'
    (state / "server.toml").write_text(text)
    with pytest.raises(UsageError):
        change(state, database=DATABASE)
    assert (state / "server.toml").read_text() == text
