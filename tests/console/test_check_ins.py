"""Devices that check in: how many are expected on the first page, and who is due in the list."""

import sys

import pytest
from playwright.sync_api import expect

from support.browser import DESKTOP, PHONE, Watched, shoot
from support.scene import HERE, Scene, apart, wait_for

LOOKS = {"light": (DESKTOP, "light"), "dark": (DESKTOP, "dark"), "phone": (PHONE, "light")}
COME = ("roof-1", "roof-2")


def pace(state):
    with (state / "server.toml").open("a") as file:
        file.write("\n[check_in]\nevery_s = 7200.0\nhold_s = 1.0\n")


@pytest.fixture(scope="module")
def ward(tmp_path_factory):
    """Two clients with a stream, and two that have checked in and are due."""
    with Scene(tmp_path_factory.mktemp("check-ins"), (), pace) as ward:
        ward.names = ("oak", "elm", *COME)
        apart(ward._enrol())
        for name in COME:
            path = ward.folder / name / "client.toml"
            path.write_text('attendance = "check-in"\n' + path.read_text())
        ward._keep("clients", sys.executable, HERE / "crew.py", ward.folder, *ward.names)
        wait_for(lambda: all(ward.control.get("clients", n)["due_at"] for n in COME), "none is due")
        wait_for(lambda: ward.control.get("server")["clients_online"] == 2, "two attend")
        yield ward


@pytest.fixture
def seen(browser, ward, pressed):
    """Opens pages; fails the test if a page reports an error."""
    with Watched(browser, ward, pressed) as watched:
        yield watched


@pytest.mark.parametrize("look", LOOKS)
def test_the_overview_leads_to_the_devices_that_are_due(seen, ward, axe, look):
    """They are neither online nor missing."""
    viewport, scheme = LOOKS[look]
    page = seen.open("/", viewport=viewport, scheme=scheme)
    expect(page.get_by_text("0 waiting")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= viewport["width"]
    shoot(page, f"check-ins-overview-{look}")
    assert axe(page) == []
    page.get_by_role("link", name="2 check in").click()
    expect(page.locator("#clients tbody tr")).to_have_count(2)
    expect(page.get_by_label("State", exact=True)).to_have_value("due")
    for name in COME:
        expect(page.locator(f"#client-{name} .tag").first).to_have_text("due")
        expect(page.locator(f"#client-{name}")).to_contain_text("comes in ")
    assert page.evaluate("document.documentElement.scrollWidth") <= viewport["width"]
    shoot(page, f"check-ins-list-{look}")
    assert axe(page) == []
    page.get_by_role("link", name="roof-1", exact=True).click()
    expect(page.get_by_text("comes in ")).to_be_visible()
    shoot(page, f"check-ins-device-{look}")
