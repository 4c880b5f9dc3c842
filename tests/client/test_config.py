"""Settings of a client: a file, the environment, and their errors."""

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

import pytest

from fedloom.client import config
from fedloom.client.config import ClientConfig, load, read
from fedloom.protocol import settings
from fedloom.protocol.errors import UsageError
from fedloom.protocol.settings import setting

MINIMAL = 'server = "localhost:7443"\nstate_dir = "state"\n'


@dataclass(frozen=True, kw_only=True)
class Tea:
    warm_above: float | None = setting(None, doc="degrees", least=0, most=100, example=60.0)
    leaves: tuple[str, ...] = setting((), doc="which", example=("green",))
    milk: bool = setting(False, doc="or none")


@dataclass(frozen=True, kw_only=True)
class Table:
    name: str = setting(doc="who")
    tea: Tea = setting(default_factory=Tea, doc="")


def write(tmp_path, text):
    path = tmp_path / "client.toml"
    path.write_text(text)
    return path


def test_the_template_is_complete_and_names_every_setting(tmp_path):
    """It loads with every default, and shows each setting once."""
    text = config.template({"server": "localhost:7443", "state_dir": "client-state"})
    loaded = load(write(tmp_path, text), {})
    assert loaded == ClientConfig(server="localhost:7443", state_dir=tmp_path / "client-state")
    for item in settings.declared(ClientConfig):
        lines = re.findall(rf"^(?:# )?(?:{item.name} = .*|\[{item.name}\])$", text, re.MULTILINE)
        assert len(lines) == 1, (item.key, lines)
        assert f"# {item.doc}\n" in text


def test_the_template_uncommented_is_valid_too(tmp_path):
    """Each commented line is a valid setting."""
    text = config.template({"server": "localhost:7443", "state_dir": "client-state"})
    bare = re.sub(r"^# (\w+ = )", r"\1", text, flags=re.MULTILINE)
    load(write(tmp_path, bare), {})
    keys = settings.from_table(ClientConfig, tomllib.loads(bare))
    assert set(keys) == {item.key for item in settings.declared(ClientConfig)}


def test_the_environment_overrides_the_file_and_the_file_the_default(tmp_path):
    """Each value has its source."""
    path = write(tmp_path, MINIMAL + "reconnect_s = 5\n[labels]\nward = 3\n")
    loaded = read(
        path, {"FEDLOOM_RECONNECT_S": "7", "FEDLOOM_LABELS": "ward=4, bed=b", "HOME": "/"}
    )
    assert loaded.config.reconnect_s == 7
    assert loaded.config.labels == {"ward": "4", "bed": "b"}
    assert loaded.config.state_dir == tmp_path / "state"
    assert loaded.sources == {
        "server": str(path),
        "state_dir": str(path),
        "reconnect_s": "FEDLOOM_RECONNECT_S",
        "labels": "FEDLOOM_LABELS",
    }


def test_the_environment_may_replace_the_file(tmp_path):
    """As in a container."""
    environ = {"FEDLOOM_SERVER": "fl:1", "FEDLOOM_STATE_DIR": "/var/lib/fedloom"}
    loaded = load(tmp_path / "none.toml", environ)
    assert (loaded.server, loaded.state_dir) == ("fl:1", Path("/var/lib/fedloom"))
    with pytest.raises(UsageError, match=r"No settings file .*enroll.* Or set FEDLOOM_STATE_DIR\."):
        load(tmp_path / "none.toml", {"FEDLOOM_SERVER": "fl:1"})


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("reconect_s = 5", "Unknown setting 'reconect_s'. Did you mean 'reconnect_s'?"),
        ("reconnect_s = '5'", 'Expected reconnect_s as a number, got "5" (text)'),
        ("reconnect_s = true", "Expected reconnect_s as a number, got true"),
        ("reconnect_s = 0", "Expected reconnect_s to be at least 0.001, got 0.0"),
        ("reconnect_s = nan", "Expected reconnect_s to be at least 0.001, got nan"),
        ("labels = 5", "Expected labels as a table of texts, got 5 (a number)"),
        ("plaintext = 5", "Expected plaintext as text, got 5"),
        ("reconnect_s = ", "client.toml: Expected settings as TOML, got: Invalid value"),
        ("chunk_bytes = 5", 'Expected chunk_bytes = "auto" or'),
    ],
)
def test_an_invalid_setting_is_named(tmp_path, more, message):
    """With what was expected, what came, and the nearest known name."""
    with pytest.raises(UsageError) as caught:
        load(write(tmp_path, MINIMAL + more), {})
    assert message in str(caught.value)


def test_a_missing_required_setting_is_named(tmp_path):
    """With its environment variable."""
    with pytest.raises(
        UsageError, match=r"Missing setting state_dir \(a path\).*FEDLOOM_STATE_DIR"
    ):
        load(write(tmp_path, 'server = "localhost:7443"'), {})


def test_a_table_is_read_from_the_file_and_the_environment():
    values = settings.from_table(Table, {"name": "a", "tea": {"leaves": ["x"], "milk": True}})
    environ = {
        "FEDLOOM_TEA_WARM_ABOVE": "60",
        "FEDLOOM_TEA_LEAVES": "a, b",
        "FEDLOOM_TEA_MILK": "no",
    }
    assert settings.build(Table, values).tea == Tea(leaves=("x",), milk=True)
    values |= settings.from_environment(Table, environ)
    assert settings.build(Table, values).tea == Tea(warm_above=60.0, leaves=("a", "b"))


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"tea": {"warm_over": 3}}, "'tea.warm_over'. Did you mean 'warm_above'?"),
        ({"warm_above": 3}, "'warm_above'. Did you mean 'tea.warm_above'?"),
        (
            {"tea": {"warm_above": 101}},
            "Expected tea.warm_above to be at least 0 and at most 100, got",
        ),
        ({"tea": {"leaves": [1]}}, "Expected tea.leaves as a list of texts, got [1] (a list)"),
        ({"tea": 3}, "Expected a table [tea], got 3"),
    ],
)
def test_an_invalid_setting_in_a_table_is_named_with_its_table(document, message):
    with pytest.raises(UsageError) as caught:
        settings.from_table(Table, document)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("variable", "text", "message"),
    [
        ("FEDLOOM_TEA_WARM_ABOVE", "hot", 'FEDLOOM_TEA_WARM_ABOVE as a number, got "hot"'),
        ("FEDLOOM_TEA_MILK", "a bit", 'FEDLOOM_TEA_MILK as true or false, got "a bit"'),
        ("FEDLOOM_TEA_WRM_ABOVE", "3", "Did you mean 'FEDLOOM_TEA_WARM_ABOVE'?"),
    ],
)
def test_an_invalid_variable_is_named(variable, text, message):
    """By the variable, not the setting."""
    with pytest.raises(UsageError) as caught:
        settings.from_environment(Table, {variable: text})
    assert message in str(caught.value)
    assert settings.from_environment(Table, {"FEDLOOM_TOKEN": "x", "TEA": "y"}) == {}


@pytest.mark.parametrize(
    "address", ["https://fl.example.org:7443", "fl.example.org", "fl example:7443", "fl:٧٤٤٣", ":1"]
)
@pytest.mark.parametrize("name", ["server", "enrolment"])
def test_an_invalid_address_is_refused(name, address):
    """Otherwise it would fail only when it is used."""
    good = {"server": "fl.example.org:7443", "state_dir": Path("state")}
    with pytest.raises(UsageError, match=f"Expected {name} as host:port, got "):
        ClientConfig(**(good | {name: address}))


def test_a_folder_in_place_of_the_settings_is_refused(tmp_path):
    with pytest.raises(UsageError, match=f"in a file, got the folder {tmp_path}"):
        load(tmp_path)
