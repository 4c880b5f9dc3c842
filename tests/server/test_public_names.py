"""The names of a server behind one port, and the settings that follow from them."""

import pytest

from fedloom.protocol.errors import UsageError
from fedloom.server.access.site import make_site
from fedloom.server.config import ServerConfig
from fedloom.server.public_names import PublicNames

PUBLIC = {"public_name": "fl.example.org", "proxies": ("192.0.2.10",)}


def test_all_follow_from_one_name():
    """The proxy's port is in each address, and in the URL if it is not the usual one."""
    names = PublicNames.parse("FL.example.org")
    assert (names.fleet, names.enrolment) == ("fl.example.org:443", "enroll.fl.example.org:443")
    assert names.console == "https://console.fl.example.org"
    other = PublicNames.parse("fl.example.org:8443")
    assert (other.fleet, other.hosts) == ("fl.example.org:8443", names.hosts)
    assert other.console == "https://console.fl.example.org:8443"


@pytest.mark.parametrize(
    "text",
    [
        "", "https://fl.example.org", "192.0.2.7", "[2001:db8::7]", "2001:db8::7", "fl_1.example",
        "fl.example.org:", "fl.example.org:0", "fl.example.org:65536", "fl.example.org:x",
        "-fl.example", "fl..example", "fl.example.", "*.example.org", "fl example", "ä.example",
        ".".join(["a" * 63] * 4),
    ],
)  # fmt: skip
def test_what_tls_cannot_ask_for_is_refused(text):
    """With what was expected, what came, and why an address does not do."""
    with pytest.raises(UsageError, match="Expected a public name") as raised:
        PublicNames.parse(text)
    assert repr(text) in str(raised.value)
    assert "fl.example.org" in str(raised.value)


def test_the_certificate_has_the_public_names():
    """Beside the others, each once."""
    config = ServerConfig(names=("localhost", "fl.example.org"), **PUBLIC)
    hosts = ("fl.example.org", "enroll.fl.example.org", "console.fl.example.org")
    assert config.certificate_names == ("localhost", *hosts)
    assert ServerConfig().certificate_names == ("localhost", "127.0.0.1")


def test_the_console_knows_its_public_name():
    """Its pages are a site with TLS; a forwarded header is not trusted, as no proxy adds one."""
    config = ServerConfig(console="127.0.0.1:7445", **PUBLIC)
    site = make_site(config, 7445, tls=True)
    assert site.url == "https://console.fl.example.org"
    assert site.secure
    assert site.knows("console.fl.example.org")
    assert site.is_own("https://console.fl.example.org", "console.fl.example.org")
    assert not site.knows("console.other.example.org")
    assert not site.behind_proxy


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"public_name": "192.0.2.7"}, "Expected a public name"),
        ({**PUBLIC, "console_url": "https://b"}, "leave console_url empty"),
        ({**PUBLIC, "proxies": ()}, "Expected proxies with public_name, got none"),
        ({"proxies": ("proxy.example.org",)}, "Expected proxies as addresses or networks"),
        ({"proxies": ("10.0.0.1/8",)}, "has host bits set"),
    ],
)
def test_settings_that_contradict_are_refused(settings, message):
    """When they are read."""
    with pytest.raises(UsageError, match=message):
        ServerConfig(**settings)


def test_a_server_without_a_console_needs_no_proxies():
    """Nobody would read their headers."""
    assert ServerConfig(public_name="fl.example.org", console="").proxy_networks() == ()


def test_proxies_may_be_networks():
    """Of both families."""
    config = ServerConfig(proxies=("192.0.2.10", "2001:db8::/64"))
    assert [str(each) for each in config.proxy_networks()] == ["192.0.2.10/32", "2001:db8::/64"]
