"""Live pages: they follow the server, report a lost connection, and recover."""

import re
import time

import pytest
from playwright.sync_api import expect

from fedloom.server.event_hub import PACE_S
from support.browser import shoot, stays
from support.patience import PATIENCE_S
from support.scene import wait_for


def test_progress_is_shown_without_reload(watched, scene):
    run = scene.submit(name="moving", rounds=300, config={"delay_s": 0.4})
    page = watched.open(f"/runs/{run}")
    same = stays(page)
    scene.until(run, 3)
    tile = page.locator(".tile dd").first
    expect(tile).to_contain_text(f"{scene.run(run)['rounds_committed']}")
    expect(page.get_by_role("img", name="Loss over").locator("canvas")).to_be_visible()
    numbers = set()

    def moved():
        numbers.add(str(page.locator("[data-now=accepted]").all_inner_texts()[:1]))
        return len(numbers) > 1

    wait_for(moved, "the number of updates never moved")
    assert same()
    scene.control.post("runs", run, "stop")


def test_a_change_between_the_page_and_its_stream_is_shown(watched, scene):
    """It is in no event; here it does not come with the regular refresh either."""
    page = watched.open()
    page.add_init_script(
        "const each = setInterval; setInterval = (act, ms) => ms === 20000 ? 0 : each(act, ms);"
    )

    def late(route):
        scene.control.post("clients", "oak", "note", body={"note": "in between"})
        time.sleep(3 * PACE_S)  # until its event is sent to those who watch already
        route.continue_()

    page.route("**/v1/events*", late, times=1)
    page.goto(f"{scene.url}/clients")
    expect(page.locator("#client-oak")).to_contain_text("in between")
    scene.control.post("clients", "oak", "note", body={"note": ""})


def test_curves_grow_with_the_live_part(watched, scene):
    """They are fetched once; a rollback removes undone rounds."""
    run = scene.submit(name="grown", rounds=60, config={"delay_s": 0.2})
    page = watched.open()
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(f"{scene.url}/runs/{run}")
    scene.until(run, 16)  # more than comes along
    scene.control.post("runs", run, "pause")
    plot = page.get_by_role("img", name="Loss over")

    def shown():
        found = scene.control.get("runs", run, "curves")
        values = [v for v in found["training"]["loss"]["mean"] if v is not None]
        return f"over {len(found['number'])} rounds: .*to {values[-1]:.4g}"

    wait_for(lambda: not scene.live(run) or scene.live(run)["paused"], "not paused")
    expect(plot).to_have_attribute("aria-label", re.compile(shown()))
    scene.control.post("runs", run, "rollback", body={"round": 3})
    expect(plot).to_have_attribute("aria-label", re.compile(r"over [1-4] rounds"))
    expect(plot).to_have_attribute("aria-label", re.compile(shown()))
    scene.control.post("runs", run, "stop")
    assert 1 <= len([url for url in asked if url.endswith("/curves")]) <= 3


def test_lost_connection_is_shown_and_restored(watched, scene, busy):
    """Within seconds, without a reload."""
    watched.forgiven += ["ERR_CONNECTION_REFUSED", "ERR_INCOMPLETE_CHUNKED", "ERR_CONNECTION_RESET",
                         "ERR_EMPTY_RESPONSE", "Failed to load resource"]  # fmt: skip
    watched.forgiven += ["ERR_SOCKET_NOT_CONNECTED"]
    page = watched.open(f"/runs/{busy}")
    same = stays(page)
    expect(page.locator("#link")).to_have_text("Live")
    with scene.stopped_server():
        expect(page.locator("#lost")).to_be_visible()
        expect(page.locator("#lost")).to_contain_text("Connection lost at")
        expect(page.locator("#link")).to_have_text("Lost")
        shoot(page, "lost")
        page.get_by_role("button", name="Pause", exact=True).click()
        page.locator("#confirm").get_by_role("button", name="Pause").click()
        expect(page.locator("#confirm .error")).to_contain_text("did not answer")
        page.keyboard.press("Escape")
    expect(page.locator("#lost")).not_to_be_visible()
    expect(page.locator("#link")).to_have_text("Live")
    wait_for(lambda: scene.control.get("server")["clients_online"] >= 6, "clients stay away")
    before = scene.run(busy)["rounds_committed"]
    scene.until(busy, before + 1)
    expect(page.locator(".tile dd").first).to_contain_text(f"{scene.run(busy)['rounds_committed']}")
    assert same()


def test_hidden_page_closes_its_stream(watched, scene, busy):
    """Browsers allow six connections per server; a page shown again is current."""
    page = watched.open(f"/runs/{busy}")
    same = stays(page)
    see = """value => { Object.defineProperty(document, 'hidden', {value, configurable: true});
             document.dispatchEvent(new Event('visibilitychange')); }"""
    page.evaluate(see, True)
    page.wait_for_timeout(15_000)
    scene.control.post("runs", busy, "pause")
    page.wait_for_timeout(1_500)
    expect(page.locator(".head .tag")).to_have_text("running")
    page.evaluate(see, False)
    expect(page.locator(".head .tag")).to_have_text("paused")
    assert same()


def test_log_follows_new_lines(watched, scene):
    """Newest first, filtered; paused and resumed."""
    page = watched.open("/logs?level=warning")
    run = scene.submit(name="noisy", rounds=1, config={"delay_s": 0.1})
    line = page.locator("#lines tr", has_text="bad-birch").first
    expect(line).to_be_visible()
    for level in page.locator("#lines .tag").all_inner_texts():
        assert level in ("warning", "error")
    page.get_by_role("button", name="Pause").click()
    count = page.locator("#lines tr").count()
    again = scene.submit(name="noisy", rounds=2, config={"delay_s": 0.1})
    expect(page.locator("#hold")).to_contain_text("more")
    assert page.locator("#lines tr").count() == count
    page.locator("#hold").click()
    expect(page.locator("#lines tr")).not_to_have_count(count)
    for each in (run, again):
        wait_for(lambda each=each: scene.run(each)["state"] in ("finished", "stopped"), "not done")


def test_page_follows_the_end_of_its_session(watched, scene):
    """A user logged out elsewhere gets the login page and no new data."""
    watched.forgiven += ["401", "ERR_INCOMPLETE_CHUNKED"]
    page = watched.open("/")
    expect(page.locator("#link")).to_have_text("Live")
    page.context.clear_cookies()
    page.evaluate("dispatchEvent(new PageTransitionEvent('pageshow', {persisted: true}))")
    page.wait_for_url("**/login*", timeout=1000 * PATIENCE_S)


@pytest.mark.parametrize("sent", [False, True])
def test_input_survives_the_session(watched, scene, sent):
    """If the session ends while typing or on sending, the input is restored after the login."""
    watched.forgiven += ["401", "ERR_INCOMPLETE_CHUNKED"]
    name = f"eve-{sent}".lower()
    body = {"name": name, "password": "correct horse battery", "scope": "operator"}
    scene.control.post("users", body=body)
    page = watched.open("/runs/new", log_in=False)

    def log_in():
        page.wait_for_url("**/login?next=**")
        page.get_by_label("Name").fill(name)
        page.get_by_label("Password").fill(body["password"])
        page.get_by_role("button", name="Log in").click()
        page.wait_for_url(scene.url + "/runs/new")

    log_in()
    page.get_by_label("Name").fill("typed")
    page.get_by_label("All other settings").fill("[config]\nshards = 3")
    page.locator("input[name=evaluate]").uncheck()
    page.context.clear_cookies()
    if sent:
        page.get_by_role("button", name="Check").click()
        page.get_by_role("link", name="Log in").click()
    else:
        page.evaluate("dispatchEvent(new PageTransitionEvent('pageshow', {persisted: true}))")
    log_in()
    expect(page.get_by_label("Name")).to_have_value("typed")
    expect(page.get_by_label("All other settings")).to_have_value("[config]\nshards = 3")
    expect(page.locator("input[name=evaluate]")).not_to_be_checked()
    page.get_by_role("button", name="Check").click()
    expect(page.locator(".health").first).to_contain_text("are valid")
    page.goto(scene.url + "/runs/new")
    expect(page.get_by_label("Name")).to_have_value("run")  # input is not restored after an answer


@pytest.mark.parametrize(("keys", "path"), [("gr", "/runs"), ("gc", "/clients"), ("go", "/")])
def test_keyboard_shortcuts_open_pages(watched, scene, keys, path):
    page = watched.open("/models")
    page.keyboard.type(keys)
    page.wait_for_url(scene.url + path)


def test_pages_work_with_only_the_keyboard(watched, scene):
    """Skip link, help, search, theme, and a dialog that returns the focus."""
    page = watched.open("/runs")
    page.keyboard.press("Tab")
    expect(page.locator(".skip")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#main")).to_be_focused()
    page.keyboard.type("?")
    expect(page.locator("#keys")).to_be_visible()
    shoot(page, "keys", whole=False)
    page.keyboard.press("Escape")
    page.keyboard.type("/")
    expect(page.locator("input[type=search]")).to_be_focused()
    page.keyboard.press("Escape")
    page.keyboard.type("t")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    page.reload()
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"


def test_login_and_logout_by_password(watched, scene):
    watched.forgiven.append("401")
    body = {"name": "ada", "password": "correct horse battery", "scope": "operator"}
    scene.control.post("users", body=body)
    page = watched.open("/runs", log_in=False)
    page.wait_for_url("**/login?next=*")
    page.get_by_label("Name").fill("ada")
    page.get_by_label("Password").fill("wrong")
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("alert")).to_be_visible()
    page.get_by_label("Password").fill("correct horse battery")
    page.get_by_role("button", name="Log in").click()
    page.wait_for_url(scene.url + "/runs")
    expect(page.locator(".who")).to_have_text("ada · operator")
    page.get_by_role("button", name="Log out").click()
    page.wait_for_url("**/login?out")
    page.goto(scene.url + "/")
    page.wait_for_url("**/login?next=*")
