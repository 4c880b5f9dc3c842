"""Studies: what an operator of one sees and may press, the queue, and the filter by study."""

import re

import pytest
from playwright.sync_api import expect

from support.browser import DESKTOP, PHONE, Watched, shoot
from support.marks import sampled
from support.scene import Scene

LOOKS = {
    "light": (DESKTOP, "light"),
    "dark": (DESKTOP, "dark"),
    "phone": (PHONE, "light"),
    "phone-dark": (PHONE, "dark"),
}
STUDIES = {"oak": "cardio", "elm": "cardio", "ash": "onco", "fir": "onco"}
"""Clients and their studies; yew is in none."""
PASSWORD = "correct horse battery"
CLOSED = ("Privacy", "Enrolment", "Audit", "Log")


def one_at_once(state):
    """Let one run of each study run at once."""
    path = state / "server.toml"
    path.write_text(path.read_text().replace("max_running = 0", "max_running = 1"))


@pytest.fixture(scope="module")
def ward(tmp_path_factory):
    """A server of two studies: each has a run, one has two more in its queue."""
    with Scene(tmp_path_factory.mktemp("studies"), (*STUDIES, "yew"), one_at_once) as ward:
        for name, study in STUDIES.items():
            ward.control.post("clients", name, "study", body={"study": study})
        body = {"name": "bea", "password": PASSWORD, "scope": "operator", "studies": ["cardio"]}
        ward.control.post("users", body=body)
        long = {"rounds": 500, "cohort": {"goal": 2, "quorum": 2}, "config": {"delay_s": 0.5}}
        ward.heart, ward.second, ward.third = (
            ward.submit(name=name, study="cardio", **long) for name in ("heart", "valve", "aorta")
        )
        ward.tumour = ward.submit(name="tumour", study="onco", **long)
        ward.until(ward.heart, 2)
        ward.until(ward.tumour, 1)
        yield ward


@pytest.fixture
def seen(browser, ward, pressed):
    """Opens pages of that server."""
    with Watched(browser, ward, pressed) as watched:
        yield watched


def log_in(seen, ward, look="light", path="/"):
    """A page of the operator of the study cardio, who logs in by password."""
    viewport, scheme = LOOKS[look]
    page = seen.open(path, viewport=viewport, scheme=scheme, log_in=False)
    page.wait_for_url("**/login?next=*")
    page.get_by_label("Name").fill("bea")
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Log in").click()
    page.wait_for_url(ward.url + path)
    return page


def fits(page, viewport):
    return page.evaluate("document.documentElement.scrollWidth") <= viewport["width"]


@pytest.mark.parametrize("look", sampled(LOOKS, 3))
def test_an_operator_of_a_study_sees_its_runs_and_clients_alone(seen, ward, axe, look):
    """After a login by password; no page has a link to one that is closed to him."""
    page = log_in(seen, ward, look)
    expect(page.locator("nav.places, nav").first).not_to_contain_text("Audit")
    for name in CLOSED:
        expect(page.get_by_role("link", name=name, exact=True)).to_have_count(0)
    paths = ["/", "/runs", "/clients", "/models", f"/runs/{ward.heart}", "/clients/oak"]
    for path in paths:
        page.goto(ward.url + path)
        text = page.locator("body").inner_text()
        assert not [word for word in ("tumour", "onco", "ash", "yew") if word in text.split()]
        assert ward.tumour not in page.content()
        assert fits(page, LOOKS[look][0])
        shoot(page, f"study-{path.strip('/').partition('/')[0] or 'overview'}-{look}")
        assert axe(page) == []
        if path == "/runs":
            expect(page.locator("tbody tr")).to_have_count(3)
        if path == "/clients":
            names = page.locator("tbody tr td.nowrap > a[href^='/clients/']").all_inner_texts()
            assert names == ["elm", "oak"]


def kind_of(link):
    """Rounds and models are alike, and so are the orders of a list."""
    return re.sub(r"\d+|[0-9a-f]{12,}|(?<=sort=)[^&#]+", "N", link)


def test_every_link_that_he_sees_opens(seen, ward):
    """From the overview, over all pages that it leads to, one of each kind."""
    page = log_in(seen, ward)
    todo, done = ["/"], set()
    while todo:
        path = todo.pop()
        if path in done:
            continue
        done.add(path)
        answer = page.request.get(ward.url + path)
        assert answer.ok, (path, answer.status)
        if "text/html" not in answer.headers["content-type"]:
            continue
        page.goto(ward.url + path)
        links = page.locator("a[href^='/']").evaluate_all(
            "all => all.map(a => a.getAttribute('href'))"
        )
        known = {kind_of(each) for each in done | set(todo)}
        for link in links:
            kind = kind_of(link)
            if kind not in known and not link.startswith(("/docs", "/static")):
                known.add(kind)
                todo.append(link)
    assert {"/runs", "/clients", "/models", "/runs/new"} <= done


def test_he_drains_his_clients_at_once_and_revokes_none(seen, ward):
    """The same bar as for others, without Revoke."""
    page = log_in(seen, ward, path="/clients")
    page.get_by_label("Select all on this page").check()
    bar = page.locator("#bulk")
    expect(bar.get_by_role("button", name="Label")).to_be_visible()
    expect(bar.get_by_role("button", name="Revoke")).to_have_count(0)
    bar.get_by_role("button", name="Drain").click()
    dialog = page.locator("#confirm")
    expect(dialog.locator("h2")).to_have_text("Drain 2 clients?")
    named = dialog.locator(".named li")  # the server names them after the dialog has opened
    expect(named).to_have_count(2)
    assert sorted(named.all_inner_texts()) == ["elm", "oak"]
    shoot(page, "study-bulk", whole=False)
    dialog.get_by_role("button", name="Drain 2").click()
    expect(page.locator(".toast")).to_contain_text("2 drained.")
    expect(page.locator("#client-oak .tag").first).to_have_text("drained")
    page.get_by_label("Select all on this page").check()
    bar.get_by_role("button", name="Release").click()
    dialog.get_by_role("button", name="Release 2").click()
    expect(page.locator("#client-oak .tag").first).not_to_have_text("drained")


@pytest.mark.parametrize("look", sampled(LOOKS, 3))
def test_the_queue_shows_the_place_of_a_run(seen, ward, axe, look):
    """In the list and on its page, which follow a new priority without reload."""
    viewport, scheme = LOOKS[look]
    first, second = ward.second, ward.third
    ward.control.post("runs", first, "priority", body={"priority": 1, "share": 1})
    ward.control.post("runs", second, "priority", body={"priority": 0, "share": 1})
    page = seen.open("/runs", viewport=viewport, scheme=scheme)
    expect(page.locator(f"#run-{first}")).to_contain_text("place 1")
    expect(page.locator(f"#run-{second}")).to_contain_text("place 2")
    expect(page.locator(f"#run-{ward.heart}")).not_to_contain_text("place")
    assert fits(page, viewport)
    shoot(page, f"queue-{look}")
    assert axe(page) == []
    page.goto(f"{ward.url}/runs/{second}")
    expect(page.locator(".head")).to_contain_text("place 2 in the queue")
    expect(page.locator("body")).to_contain_text("The run waits for its turn in the queue.")
    shoot(page, f"queued-run-{look}")
    assert axe(page) == []
    ward.control.post("runs", second, "priority", body={"priority": 2, "share": 1})
    expect(page.locator(".head")).to_contain_text("place 1 in the queue")


@pytest.mark.parametrize("look", ["light", "phone-dark"])
def test_lists_are_filtered_by_study(seen, ward, axe, look):
    """The filter is in the URL, and stays through a reload and live updates."""
    viewport, scheme = LOOKS[look]
    page = seen.open("/clients", viewport=viewport, scheme=scheme)
    page.get_by_label("Study", exact=True).select_option("onco")
    page.wait_for_url("**/clients?study=onco")
    expect(page.locator("[data-pick]")).to_have_count(2)
    shoot(page, f"study-filter-clients-{look}")
    assert axe(page) == []
    page.reload()
    expect(page.get_by_label("Study", exact=True)).to_have_value("onco")
    expect(page.locator("#client-ash")).to_be_visible()
    ward.control.post("clients", "ash", "note", body={"note": look})
    expect(page.locator("#client-ash")).to_contain_text(look)
    expect(page.locator("[data-pick]")).to_have_count(2)
    page.get_by_label("Study", exact=True).select_option("none")
    page.wait_for_url("**/clients?study=-")
    expect(page.locator("#client-yew")).to_be_visible()
    expect(page.locator("[data-pick]")).to_have_count(1)

    page.goto(f"{ward.url}/runs?sort=-run")
    page.get_by_label("Study", exact=True).select_option("cardio")
    page.get_by_role("button", name="Filter").click()
    page.wait_for_url("**study=cardio**")
    expect(page.locator("tbody tr")).to_have_count(3)
    assert "sort=-run" in page.url
    assert fits(page, viewport)
    shoot(page, f"study-filter-runs-{look}")
    assert axe(page) == []


@pytest.mark.parametrize("path", ["/runs", "/clients"])
def test_no_column_is_cut_off_with_studies(seen, path):
    """On a window of 1440 pixels."""
    page = seen.open(path, viewport={"width": 1440, "height": 900})
    page.wait_for_timeout(300)
    scroll = page.locator(".scroll").first
    assert scroll.evaluate("e => e.scrollWidth - e.clientWidth") <= 0
    shoot(page, f"study-wide-{path.strip('/')}", whole=False)
