"""Lists: sorted by their headers, with chosen columns, files, and actions on several clients."""

import csv
import re

import pytest
from playwright.sync_api import expect

from support.archive import digest_of
from support.big_ledger import RUN, name_of
from support.browser import DESKTOP, PHONE, shoot, stays
from support.marks import sampled

WIDE = {"width": 1440, "height": 900}
LISTS = {
    "/runs": "Started",
    "/clients": "Client",
    "/models": "Created",
    "/audit": "No.",
    "/enrolment": "Created",
    f"/runs/{RUN}/rounds": "Round",
    f"/runs/{RUN}/rounds/9": "Client",
}
"""Lists, and the column of their own order."""


def header(page, title):
    """The header of a column, by its exact title."""
    return page.locator("th[scope=col]", has_text=re.compile(rf"^{re.escape(title)}[▲▼]?$"))


def column(page, title):
    """The texts of a column, from the top."""
    index = page.locator("th[scope=col]").all_inner_texts()
    place = next(n for n, text in enumerate(index) if text.strip("▲▼ \n") == title)
    heads = page.locator("table:has(th[scope=col]) thead th")
    first = heads.evaluate_all("all => all.findIndex(e => e.scope === 'col')")
    return page.locator(
        f"table:has(th[scope=col]) td:nth-child({place + first + 1})"
    ).all_inner_texts()


@pytest.mark.parametrize("path", LISTS)
def test_list_is_sorted_from_its_header(reader, path):
    """By keyboard; a reload keeps the order, the back button returns to the one before."""
    page = reader.open(path)
    expect(page.locator("th[aria-sort]")).to_have_count(1)
    expect(header(page, LISTS[path])).to_have_attribute("aria-sort", re.compile("cending"))
    before = page.url
    state = header(page, "State") if path != "/audit" else header(page, "Who")
    state.get_by_role("link").focus()
    page.keyboard.press("Enter")
    expect(state).to_have_attribute("aria-sort", "ascending")
    page.reload()
    expect(state).to_have_attribute("aria-sort", "ascending")
    state.get_by_role("link").click()
    expect(state).to_have_attribute("aria-sort", "descending")
    page.go_back()
    expect(state).to_have_attribute("aria-sort", "ascending")
    page.get_by_role("link", name="Usual order").click()
    page.wait_for_url(before)


def test_rounds_are_sorted_by_accuracy_and_found_again(reader):
    """The values of a page are in order, over all pages."""
    page = reader.open(f"/runs/{RUN}/rounds")
    header(page, "Accuracy").get_by_role("link").click()
    expect(header(page, "Accuracy")).to_have_attribute("aria-sort", "descending")
    header(page, "Accuracy").get_by_role("link").click()
    expect(header(page, "Accuracy")).to_have_attribute("aria-sort", "ascending")
    values = [float(text.removesuffix("\xa0%")) for text in column(page, "Accuracy")]
    assert values == sorted(values)
    page.get_by_role("link", name="Next").click()
    page.wait_for_url("**page=2")
    more = [float(text.removesuffix("\xa0%")) for text in column(page, "Accuracy")]
    assert more == sorted(more)
    assert more[0] >= values[-1]
    assert len(values) + len(more) == 70
    page.get_by_role("link", name="Previous").click()
    page.wait_for_url(lambda url: "page=1" in url)
    assert column(page, "Round")[0] == "1"


@pytest.mark.parametrize("path", LISTS)
def test_file_is_downloaded(reader, path):
    """With the rows of the filter, as the page shows them."""
    page = reader.open(path)
    with page.expect_download() as caught:
        page.get_by_role("link", name="CSV").click()
    assert re.fullmatch(r"[\w-]+-\d{8}T\d{6}Z\.csv", caught.value.suggested_filename)
    with caught.value.path().open(newline="") as file:
        rows = list(csv.DictReader(file))
    shown = page.locator("table:has(th[scope=col]) tbody tr").count()
    assert len(rows) >= shown > 0


@pytest.mark.parametrize("viewport", [DESKTOP, PHONE])
def test_columns_are_chosen(reader, viewport, axe):
    """Metrics too. The choice is in the URL, and stays with the order."""
    page = reader.open(f"/runs/{RUN}/rounds", viewport=viewport, scheme="dark")
    page.get_by_text("Columns", exact=True).click()
    menu = page.locator("form.columns")
    box = menu.bounding_box()
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= viewport["width"]
    shoot(page, f"columns-{viewport['width']}", whole=False)
    assert axe(page) == []
    for name in ("Accuracy", "Late", "Lost"):
        menu.get_by_label(f"Column {name}", exact=True).uncheck()
    menu.get_by_label("Column Down", exact=True).check()
    menu.get_by_role("button", name="Show").click()
    page.wait_for_url("**columns=*")
    heads = [text.strip("▲▼ \n") for text in page.locator("th[scope=col]").all_inner_texts()]
    assert "Down" in heads
    assert "Loss" in heads
    assert not {"Accuracy", "Late", "Lost"} & set(heads)
    header(page, "Down").get_by_role("link").click()
    expect(header(page, "Down")).to_have_attribute("aria-sort", "descending")
    assert "columns=" in page.url
    page.get_by_text("Columns", exact=True).click()
    page.keyboard.press("Escape")
    expect(menu).not_to_be_visible()
    page.get_by_text("Columns", exact=True).click()
    page.get_by_role("link", name="Usual columns").click()
    page.wait_for_url(lambda url: "columns=" not in url)
    expect(header(page, "Accuracy")).to_be_visible()


@pytest.mark.parametrize("path", LISTS)
def test_no_column_is_cut_off(reader, path):
    """On a window of 1440 pixels."""
    page = reader.open(path, viewport=WIDE)
    page.wait_for_timeout(300)
    for table in page.locator(".scroll").all():
        assert table.evaluate("e => e.scrollWidth - e.clientWidth") <= 0
    shoot(page, f"wide-{path.strip('/').replace('/', '-')}", whole=False)


TOGETHER = {
    "refusals": (f"/runs/{RUN}", "Refusals", "refusals"),
    "promotions": ("/models", "Promotions", "promotions"),
    "tensors": (f"/models/{digest_of(70)}", "Tensors", "tensors"),
    "tasks": (f"/clients/{name_of(7)}", "Its tasks in rounds", ""),
    "budgets": ("/privacy", "Budgets", ""),
    "runs": ("/privacy", "Runs", "runs"),
    "spenders": ("/privacy", "Clients", "clients"),
}
"""Lists on pages with other parts: page, label of the table, prefix of its values in the URL."""


@pytest.fixture(scope="module")
def furnished(archive):
    """The archive with promotions and a budget."""
    for number in (68, 69, 70):
        archive.control.post("models", digest_of(number), "promote", body={"note": f"n{number}"})
    archive.control.post("privacy", "budgets", body={"label": "", "epsilon": 8.0, "delta": 1e-6,
                                                     "allow_public": True})  # fmt: skip
    return archive


@pytest.mark.parametrize("look", sampled(["wide", "phone"], 2))
@pytest.mark.parametrize("name", TOGETHER)
def test_list_among_others_is_sorted_and_downloaded(reader, furnished, axe, name, look):
    """By keyboard; the page returns to the list, and keeps its order through a reload."""
    path, label, prefix = TOGETHER[name]
    viewport, scheme = {"wide": (WIDE, "light"), "phone": (PHONE, "dark")}[look]
    page = reader.open(path, viewport=viewport, scheme=scheme)
    region = page.locator(f'.scroll[aria-label="{label}"]')
    head = region.locator("th[scope=col]").nth(1)
    head.get_by_role("link").focus()
    page.keyboard.press("Enter")
    page.wait_for_url(f"**{prefix}{'.' * bool(prefix)}sort=*")
    expect(region.locator("th[aria-sort]")).to_have_count(1)
    expect(head).to_have_attribute("aria-sort", re.compile("cending"))
    if prefix:
        expect(page.locator(f"section#{prefix} h2").first).to_be_in_viewport()
    way = head.get_attribute("aria-sort")
    page.reload()
    expect(head).to_have_attribute("aria-sort", way)
    head.get_by_role("link").click()
    expect(head).not_to_have_attribute("aria-sort", way)
    page.wait_for_timeout(300)
    assert page.evaluate("document.documentElement.scrollWidth") <= viewport["width"]
    if look == "wide":
        assert region.evaluate("e => e.scrollWidth - e.clientWidth") <= 0
    shoot(page, f"list-{name}-{look}")
    section = page.locator("section", has=region).last
    section.get_by_text("Columns", exact=False).first.click()
    menu = section.locator("form.columns")
    box = menu.bounding_box()
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= viewport["width"]
    assert axe(page) == []
    titles = [text.strip("▲▼ \n") for text in region.locator("th[scope=col]").all_inner_texts()]
    menu.get_by_role("checkbox").nth(1).uncheck()
    menu.get_by_role("button", name="Show").click()
    page.wait_for_url("**columns=*")
    expect(region.locator("th[scope=col]")).to_have_count(len(titles) - 1)
    with page.expect_download() as caught:
        section.get_by_role("link", name="CSV").click()
    with caught.value.path().open(newline="") as file:
        rows = list(csv.DictReader(file))
    shown = region.locator("tbody tr").count()
    assert len(rows) >= shown > 0


def test_one_of_several_lists_is_filtered(reader):
    """The others keep their order and rows."""
    page = reader.open("/privacy?runs.sort=-clients")
    page.locator("section#clients").get_by_role("searchbox").fill(name_of(17))
    page.locator("section#clients").get_by_role("button", name="Filter").click()
    page.wait_for_url("**clients.q=*")
    expect(page.locator("section#clients tbody tr")).to_have_count(1)
    expect(page.locator("section#runs th[aria-sort=descending]")).to_have_text(
        re.compile("Clients")
    )
    expect(page.locator("section#runs tbody tr")).to_have_count(1)
    expect(page.locator("section#clients h2")).to_be_in_viewport()


def test_tasks_of_a_client_are_filtered(reader):
    page = reader.open(f"/clients/{name_of(7)}")
    page.get_by_label("Search").fill(RUN[:5])
    page.get_by_label("State", exact=True).select_option("failed")
    page.get_by_role("button", name="Filter").click()
    page.wait_for_url("**state=failed")
    assert {text.split()[0] for text in column(page, "State")} == {"failed"}


def test_refusals_of_a_run_are_filtered(reader):
    page = reader.open(f"/runs/{RUN}")
    section = page.locator("section#refusals")
    section.get_by_label("Code", exact=True).fill("not_finite")
    section.get_by_role("searchbox").fill("ward-0000")
    section.get_by_role("button", name="Filter").click()
    page.wait_for_url("**refusals.code=not_finite**")
    names = section.locator("tbody td:nth-child(2)").all_inner_texts()
    assert names
    assert all(name.startswith("ward-0000") for name in names)


def test_members_are_filtered(reader):
    """By name and state, beside the round's other parts."""
    page = reader.open(f"/runs/{RUN}/rounds/9")
    page.get_by_label("Search").fill("ward-0000")
    page.get_by_label("State", exact=True).select_option("late")
    page.get_by_role("button", name="Filter").click()
    page.wait_for_url("**state=late")
    assert set(column(page, "State")) <= {"late"}
    page.get_by_text("shapes of sessions").click()
    expect(page.get_by_role("region", name="Shapes of sessions")).to_be_visible()
    page.get_by_label("Search").fill("nobody")
    page.get_by_role("button", name="Filter").click()
    expect(page.locator(".empty")).to_contain_text("No client matches")


def test_tokens_are_filtered(reader):
    page = reader.open("/enrolment")
    page.get_by_label("Search").fill(name_of(17))
    page.get_by_label("State", exact=True).select_option("used")
    page.get_by_role("button", name="Filter").click()
    page.wait_for_url("**state=used")
    assert column(page, "Client") == [name_of(17)]


def test_rounds_are_filtered_by_state(reader):
    page = reader.open(f"/runs/{RUN}/rounds")
    page.get_by_label("State", exact=True).select_option("abandoned")
    page.get_by_role("button", name="Filter").click()
    expect(page.locator(".empty")).to_contain_text("No round matches")


def test_filter_while_typing_stays_through_live_updates(watched, scene):
    """It is in the URL, which a reload and a refresh by the server use."""
    page = watched.open("/clients?sort=-client")
    same = stays(page)
    page.get_by_label("Search").fill("a")
    page.wait_for_url("**/clients?q=a&sort=-client")
    names = [c["name"] for c in scene.control.get("clients", q="a")["clients"]][::-1]
    expect(page.locator("[data-pick]")).to_have_count(len(names))
    scene.control.post("clients", "ash", "note", body={"note": "moved"})
    scene.control.post("clients", "ash", "drain", body={})
    expect(page.locator("#client-ash .tag").first).to_have_text("drained")
    assert column(page, "Client") == names
    scene.control.post("clients", "ash", "release", body={})
    expect(page.locator("#client-ash .tag").first).not_to_have_text("drained")
    assert same()
    page.reload()
    assert column(page, "Client") == names
    expect(page.get_by_label("Search")).to_have_value("a")


def test_several_clients_are_drained_and_released(watched, scene):
    """One confirmation names them; each has its own entry; the choice survives refreshes."""
    page = watched.open("/clients")
    expect(page.locator("#bulk")).not_to_be_visible()
    for name in ("oak", "elm"):
        page.get_by_label(f"Select {name}").check()
    expect(page.locator("[data-picked]")).to_have_text("2")
    scene.control.post("clients", "ash", "drain", body={})  # another operator
    expect(page.locator("#client-ash .tag").first).to_have_text("drained")
    expect(page.get_by_label("Select oak")).to_be_checked()
    page.locator("#bulk").get_by_role("button", name="Drain").click()
    dialog = page.locator("#confirm")
    expect(dialog.locator("h2")).to_have_text("Drain 2 clients?")
    expect(dialog.locator(".consequence")).to_contain_text("finish their tasks")
    named = dialog.locator(".named li")  # the server names them after the dialog has opened
    expect(named).to_have_count(2)
    assert sorted(named.all_inner_texts()) == ["elm", "oak"]
    dialog.get_by_label("Reason").fill("a new model")
    shoot(page, "bulk", whole=False)
    dialog.get_by_role("button", name="Drain 2").click()
    expect(page.locator(".toast")).to_contain_text("2 drained.")
    for name in ("oak", "elm"):
        expect(page.locator(f"#client-{name} .tag").first).to_have_text("drained")
    expect(page.locator("#bulk")).not_to_be_visible()
    entries = scene.control.get("audit", action="client.drain")["entries"]
    assert {e["subject"] for e in entries[:2]} == {"oak", "elm"}
    page.get_by_label("Select oak").check()
    page.get_by_label("Select elm").check()
    page.get_by_label("Select ash").check()
    page.locator("#bulk").get_by_role("button", name="Release").click()
    dialog.get_by_role("button", name="Release 3").click()
    expect(page.locator(".toast").last).to_contain_text("3 released.")
    expect(page.locator("#client-oak .tag").first).not_to_have_text("drained")


def test_all_that_match_are_labelled(reader, archive):
    """More than the page shows, and only those that match; they are named before."""
    page = reader.open("/clients?q=ward-001")
    page.get_by_label("Select all on this page").check()
    expect(page.locator("[data-picked]")).to_have_text("100")
    page.get_by_role("button", name="Clear").click()
    expect(page.locator("#bulk")).not_to_be_visible()
    page.goto(archive.url + "/clients?q=ward-00")
    page.get_by_label("Select all on this page").check()
    page.get_by_role("button", name="Select all 240 that match").click()
    expect(page.locator("[data-picked]")).to_have_text("All 240")
    page.get_by_label(f"Select {name_of(0)}").uncheck()  # ends the choice of all
    expect(page.locator("[data-picked]")).to_have_text("99")
    page.goto(archive.url + "/clients?label=site%3Dnorth")
    matching = archive.control.get("clients", label="site=north")["total"]
    page.get_by_label("Select all on this page").check()
    expect(page.locator("[data-picked]")).to_have_text(f"{matching}")
    page.locator("#bulk").get_by_role("button", name="Label").click()
    dialog = page.locator("#confirm")
    dialog.get_by_label("Name").fill("wave")
    dialog.get_by_label("Value").fill("first")
    dialog.get_by_role("button", name=f"Label {matching}").click()
    expect(page.locator(".toast")).to_contain_text(f"{matching} labelled.")
    assert archive.control.get("clients", label="wave=first")["total"] == matching


def test_matching_clients_are_named_before_they_are_quarantined(reader, archive):
    """All of the filter, not only those of the page; a failure of the preview stops it."""
    page = reader.open("/clients?q=ward")
    page.get_by_label("Select all on this page").check()
    page.get_by_role("button", name="Select all 240 that match").click()
    page.locator("#bulk").get_by_role("button", name="Quarantine").click()
    dialog = page.locator("#confirm")
    expect(dialog.locator(".named li")).to_have_count(240)
    page.keyboard.press("Escape")
    assert archive.control.get("clients", state="quarantined")["total"] < 20
    page.locator("#bulk").get_by_role("button", name="Revoke").click()
    expect(dialog.locator(".consequence")).to_contain_text("lose their certificates")
    page.keyboard.press("Escape")


def test_all_that_match_are_those_of_the_typed_filter(reader, archive):
    """Not those of the filter that the page was loaded with; another filter ends the choice."""
    page = reader.open("/clients")
    page.get_by_label("Select all on this page").check()
    page.get_by_role("button", name="Clear").click()
    page.get_by_label("Search").fill("ward-000")
    expect(page.locator("[data-pick]")).to_have_count(100)
    page.get_by_label("Select all on this page").check()
    expect(page.locator("[data-pick-all]")).to_be_hidden()
    page.get_by_label("Search").fill("ward-0000")
    expect(page.locator("[data-pick]")).to_have_count(10)
    expect(page.locator("#bulk")).to_contain_text("100 selected, 90 not shown here")
    page.get_by_role("button", name="Clear").click()
    page.get_by_label("Search").fill("ward-001")
    expect(page.locator("[data-pick]").first).to_have_attribute("data-pick", name_of(100))
    page.get_by_label("Search").fill("ward-00")
    page.get_by_label("Select all on this page").check()
    page.get_by_label("Search").fill("ward-0001")
    expect(page.locator("[data-pick]")).to_have_count(10)
    page.get_by_role("button", name="Clear").click()
    page.get_by_label(f"Select {name_of(10)}").check()
    page.get_by_role("button", name="Select all 10 that match").click()
    page.locator("#bulk").get_by_role("button", name="Quarantine").click()
    dialog = page.locator("#confirm")
    expect(dialog.locator("h2")).to_have_text("Quarantine 10 clients?")
    expect(dialog.locator(".named li")).to_have_count(10)
    page.keyboard.press("Escape")
    page.get_by_label("Search").fill("ward-00")
    expect(page.locator("[data-pick]")).to_have_count(100)
    expect(page.locator("#bulk")).not_to_be_visible()


def test_title_counts_the_clients_that_are_named(reader, archive):
    """A client that enrolled after the page was drawn is counted and named, or not acted on."""
    page = reader.open("/clients?q=ward-0000")
    page.get_by_label(f"Select {name_of(0)}").check()
    page.get_by_role("button", name="Select all 10 that match").click()
    page.evaluate("document.querySelector('#clients').dataset.total = '7'")  # an older count
    page.locator("#bulk").get_by_role("button", name="Drain").click()
    dialog = page.locator("#confirm")
    expect(dialog.locator(".named li")).to_have_count(10)
    expect(dialog.locator("h2")).to_have_text("Drain 10 clients?")
    expect(dialog.get_by_role("button", name="Drain 10")).to_be_visible()


def test_columns_keep_the_typed_filter(reader):
    page = reader.open("/clients?sort=-client&columns=client,state")
    page.get_by_label("Search").fill("ward-0000")
    expect(page.locator("[data-pick]")).to_have_count(10)
    page.get_by_text("Columns", exact=True).click()
    page.locator("form.columns").get_by_label("Column Version", exact=True).check()
    page.get_by_role("button", name="Show").click()
    expect(header(page, "Version")).to_be_visible()
    expect(page.locator("[data-pick]")).to_have_count(10)
    assert "sort=-client" in page.url
    page.get_by_label("Search").fill("ward-00001")
    expect(page.locator("[data-pick]")).to_have_count(1)
    page.get_by_text("Columns", exact=True).click()
    page.get_by_role("link", name="Usual columns").click()
    page.wait_for_url(lambda url: "columns=" not in url)
    expect(page.locator("[data-pick]")).to_have_count(1)
    assert "sort=-client" in page.url


def test_viewer_selects_nothing(reader):
    page = reader.open("/clients", scope="viewer")
    expect(page.locator("[data-pick]")).to_have_count(0)
    expect(page.locator("#bulk")).not_to_be_visible()


def test_log_line_is_one_line_until_it_is_opened(watched):
    """By keyboard; its time is absolute on hover."""
    page = watched.open("/logs?level=debug")
    line = page.locator("#lines details").first
    height = line.bounding_box()["height"]
    assert height < 30
    stamp = page.locator("#lines time").first
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT.*", stamp.get_attribute("datetime"))
    assert re.search(r"\d\d?:\d\d:\d\d", stamp.get_attribute("title"))
    line.locator("summary").focus()
    page.keyboard.press("Enter")
    expect(line).to_have_attribute("open", "")
    shoot(page, "log-line", whole=False)
