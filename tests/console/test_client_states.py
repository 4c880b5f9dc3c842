"""A client that fails again and again, and one whose device reports its readings."""

import os
import stat

import pytest
from playwright.sync_api import expect

from support.browser import DESKTOP, PHONE, Watched, act, shoot
from support.scene import Scene, apart, wait_for

LOOKS = {"light": (DESKTOP, "light"), "dark": (DESKTOP, "dark"), "phone": (PHONE, "light")}


SMI = "#!/bin/sh\necho 'NVIDIA H200, 7, 512, 143771, 34'\n"
SETTINGS = "\n[clients]\nfailing_after = 2\ncool_off_s = 7200.0\ndevice_report_s = 10.0\n"


def cooling(state):
    """Let a client cool off after two failures."""
    with (state / "server.toml").open("a") as file:
        file.write(SETTINGS)


@pytest.fixture(scope="module")
def ward(tmp_path_factory):
    """Five clients, of which one sends invalid updates and cools off."""
    names = ("oak", "elm", "ash", "fir", "bad-birch")
    folder = tmp_path_factory.mktemp("ward")
    program = folder / "nvidia-smi"
    program.write_text(SMI)
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    with pytest.MonkeyPatch.context() as patch, Scene(folder, (), cooling) as ward:
        patch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
        ward.names = names
        apart(ward._enrol())
        readings = '["cpu", "memory", "gpu", "temperature", "battery"]'
        (folder / "oak" / "policy.toml").write_text(f"[device]\nreport = {readings}\n")
        ward.start_clients()
        cohort = {"goal": 4, "quorum": 2, "deadline_s": 120.0}
        ward.finished = ward.submit(rounds=8, cohort=cohort, config={"delay_s": 0.1})
        ward.until(ward.finished, 8)
        yield ward


@pytest.fixture
def seen(browser, ward, pressed):
    """Opens pages; fails the test if a page reports an error."""
    with Watched(browser, ward, pressed) as watched:
        yield watched


@pytest.mark.parametrize("look", LOOKS)
def test_a_failing_client_is_seen_in_the_list_and_on_its_page(seen, ward, axe, look):
    """Its state, its success rate and its last error are words, not colours alone."""
    viewport, scheme = LOOKS[look]
    page = seen.open("/clients", viewport=viewport, scheme=scheme)
    row = page.locator("#client-bad-birch")
    expect(row.locator(".tag").first).to_have_text("cooling off")
    expect(row).to_contain_text("not_finite")
    expect(row).to_contain_text(f"{ward.finished}/")
    expect(page.locator("#client-oak .tag").first).to_have_text("idle")
    expect(page.locator("#client-oak")).to_contain_text("100 %")
    assert page.evaluate("document.documentElement.scrollWidth") <= viewport["width"]
    shoot(page, f"failing-list-{look}")
    assert axe(page) == []
    page.goto(f"{ward.url}/clients/bad-birch")
    box = page.locator(".alerts")
    expect(box).to_contain_text("It fails again and again")
    expect(box).to_contain_text("not_finite")
    expect(box).to_contain_text("It gets offers again in")
    assert page.evaluate("document.documentElement.scrollWidth") <= viewport["width"]
    shoot(page, f"failing-client-{look}")
    assert axe(page) == []


def test_the_overview_leads_to_it_and_its_release_ends_the_pause(seen, ward):
    """The filter lists it alone; afterwards it is idle and keeps its last error."""
    page = seen.open("/")
    expect(page.locator(".alerts")).to_contain_text("bad-birch")
    page.get_by_role("link", name="1 failing").click()
    expect(page.locator("#clients tbody tr")).to_have_count(1)
    expect(page.get_by_label("State", exact=True)).to_have_value("failing")
    page.get_by_role("link", name="bad-birch", exact=True).click()
    act(page, "Release", says="gets offers again at once")
    expect(page.locator(".head .tag")).to_have_text("idle")
    expect(page.locator(".facts")).to_contain_text("not_finite")
    assert ward.control.get("clients", "bad-birch")["failures"] == 0
    page.goto(f"{ward.url}/")
    expect(page.get_by_role("link", name="1 failing")).to_have_count(0)


@pytest.mark.parametrize("look", LOOKS)
def test_the_readings_of_a_device_are_on_its_page(seen, ward, axe, look):
    """Those of a device whose owner lets them leave; other pages have no such part."""
    viewport, scheme = LOOKS[look]
    wait_for(lambda: (ward.control.get("clients", "oak")["device"] or {}).get("cpu"), "no report")
    page = seen.open("/clients/oak", viewport=viewport, scheme=scheme)
    part = page.get_by_role("region", name="Device")
    expect(part).to_contain_text("% busy")
    expect(part).to_contain_text("used")
    expect(part).to_contain_text("NVIDIA H200, 7 % busy, 0 % of 151 GB used, 34.0 °C")
    assert page.evaluate("document.documentElement.scrollWidth") <= viewport["width"]
    shoot(page, f"device-{look}")
    assert axe(page) == []
    page.goto(f"{ward.url}/clients/elm")
    expect(page.get_by_role("heading", name="Contribution")).to_be_visible()
    expect(page.get_by_role("region", name="Device")).to_have_count(0)
