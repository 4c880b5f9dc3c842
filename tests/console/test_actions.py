"""Every action from its button: confirmed with its effect, done, and visible without a reload."""

import re

import numpy as np
import pytest
from playwright.sync_api import expect

from fedloom.client import load_file, save_file
from fedloom.client.identity.enrol import enrol
from fedloom.protocol.errors import FedloomError
from support.browser import act, shoot, stays
from support.scene import apart, wait_for


def test_run_is_paused_resumed_and_stopped(watched, scene, busy):
    """The dialog describes the effect, and the page follows."""
    page = watched.open(f"/runs/{busy}")
    same = stays(page)
    page.get_by_role("button", name="Pause", exact=True).click()
    shoot(page, "confirm", whole=False)
    page.keyboard.press("Escape")
    assert scene.run(busy)["state"] == "running"
    act(page, "Pause", says="deadline of round")
    expect(page.locator(".toast")).to_contain_text("Paused")
    expect(page.locator(".head .tag")).to_have_text("paused")
    assert scene.run(busy)["state"] == "paused"
    act(page, "Resume")
    expect(page.locator(".head .tag")).to_have_text("running")
    ranks = [("Priority, the highest comes first", "3"), ("Share, among runs of one priority", "2")]
    act(page, "Priority", fields=ranks, yes="Change them")
    wait_for(lambda: (scene.run(busy)["priority"], scene.run(busy)["share"]) == (3, 2), "no rank")
    expect(page.locator(".facts")).to_contain_text("3, 2")
    act(page, "Stop run", yes="Stop the run")
    expect(page.locator(".head .tag")).to_have_text("stopped")
    assert scene.run(busy)["state"] == "stopped"
    assert same()


def test_round_is_extended_closed_and_aborted(watched, scene, busy):
    page = watched.open(f"/runs/{busy}")
    before = scene.live(busy)["deadline_left_s"]
    act(page, "Extend", fields=[("Seconds to add", "500")], yes="Extend it")
    wait_for(lambda: scene.live(busy)["deadline_left_s"] > before + 400, "no extension")
    wait_for(lambda: scene.live(busy)["accepted"] >= 1, "no update")
    number = scene.live(busy)["number"]
    act(page, "Goal", fields=[("Quorum", "2")], yes="Change them")
    wait_for(lambda: scene.live(busy)["quorum"] == 2, "no other quorum")
    act(page, "Close round", yes="Close the round")
    wait_for(lambda: scene.run(busy)["rounds_committed"] >= 1, "not closed")
    wait_for(lambda: scene.live(busy).get("number", 0) > number, "no next round")
    number = scene.live(busy)["number"]
    wait_for(lambda: scene.live(busy)["state"] == "reporting", "not open")
    abort = page.get_by_role("button", name="Abort round")
    expect(abort).to_have_attribute("data-title", f"Abort round {number}?")
    act(page, "Abort round", fields=[("Reason", "a bad batch")], yes="Abort the round")
    found = wait_for(lambda: scene.round(busy, number) if scene.round(busy, number)["state"]
                     == "abandoned" else None, "not aborted")  # fmt: skip
    assert found["reason"] == "a bad batch"
    expect(page.get_by_role("region", name="Latest rounds")).to_contain_text("a bad batch")


def test_outdated_action_is_refused_with_the_reason(watched, scene, busy):
    """Another operator acted meanwhile; nothing happens twice."""
    page = watched.open(f"/runs/{busy}")
    page.get_by_role("button", name="Close round").click()
    scene.control.post("runs", busy, "stop")
    page.locator("#confirm").get_by_role("button", name="Close the round").click()
    expect(page.locator(".toast")).to_contain_text("nothing changes")


def test_two_operators_see_each_others_actions(watched, scene, busy):
    """Without a reload; a repeated action has no effect."""
    first, second = watched.open(f"/runs/{busy}"), watched.open("/")
    same = stays(first), stays(second)
    act(first, "Pause")
    card = second.locator(f"#run-{busy}")
    expect(card.locator(".tag").first).to_have_text("paused")
    expect(second.locator(".alerts")).to_contain_text("is paused")
    card.get_by_role("button", name="Resume").click()
    second.locator("#confirm").get_by_role("button", name="Resume").click()
    expect(first.locator(".head .tag")).to_have_text("running")
    expect(card.locator(".tag").first).to_have_text("running")
    assert all(each() for each in same)


def test_alert_offers_quarantine(watched, scene, busy):
    """The alert says who is refused and why; quarantine ends it."""
    again = scene.submit(name="refused", rounds=4, config={"delay_s": 0.1})
    scene.until(again, 3)
    page = watched.open("/")
    alert = page.locator(".alerts li", has_text="bad-birch was refused")
    expect(alert).to_contain_text("got nan")
    alert.get_by_role("button", name="Quarantine").click()
    dialog = page.locator("#confirm")
    expect(dialog.locator(".consequence")).to_contain_text("gets no offers")
    dialog.get_by_role("button", name="Quarantine").click()
    expect(alert).to_have_count(0)
    scene.control.post("clients", "bad-birch", "release")
    expect(alert).to_be_visible()


def test_client_is_held_released_noted_and_labelled(watched, scene):
    """And found by note and label."""
    page = watched.open("/clients/elm")
    reason = [("Reason", "strange updates")]
    act(page, "Quarantine", fields=reason, says="gets no offers")
    expect(page.locator(".head .tag")).to_have_text("quarantined")
    expect(page.locator(".head")).to_contain_text("strange updates")
    act(page, "Release", says="gets offers again")
    expect(page.locator(".head .tag")).not_to_have_text("quarantined")
    act(page, "Drain", says="finishes its task")
    expect(page.locator(".head .tag")).to_have_text("drained")
    act(page, "Release")
    act(page, "Note", fields=[("Note", "on the second floor")], yes="Save")
    expect(page.locator("#main")).to_contain_text("on the second floor")
    act(page, "Label", fields=[("Name", "site"), ("Value", "north")], yes="Save")
    expect(page.locator(".chip")).to_have_text("site=north")
    page.goto(scene.url + "/clients")
    page.get_by_label("Search").fill("second floor")
    rows = page.locator("#clients tbody tr")
    expect(rows).to_have_count(1)
    expect(rows).to_contain_text("elm")
    page.get_by_label("Search").fill("no such thing")
    expect(page.locator(".empty")).to_contain_text("No client matches")


def test_model_is_promoted_and_a_run_rolled_back(watched, scene):
    """With the server's description of the effect."""
    run = scene.submit(name="back", rounds=3, config={"delay_s": 0.1})
    scene.until(run, 3)
    wait_for(lambda: scene.run(run)["state"] == "finished", "not finished")
    digest = scene.round(run, 2)["model_out"]
    page = watched.open(f"/models/{digest}")
    act(page, "Promote", fields=[("Note", "the best so far")])
    expect(page.locator(".head .tag")).to_have_text("promoted")
    shoot(page, "promoted")
    page.goto(scene.url + "/models")
    expect(page.locator(".health")).to_contain_text("the best so far")
    page.goto(scene.url + f"/runs/{run}/rounds/1")
    act(page, "Roll back to this round", says="continues from the model", yes="Roll back")
    page.goto(scene.url + f"/runs/{run}/rounds")
    expect(page.locator("#round-3 .tag")).to_have_text("undone")
    assert scene.run(run)["state"] == "paused"
    scene.control.post("runs", run, "stop")


def test_device_enrols_by_a_token_from_the_page(watched, scene):
    """The token is shown once, as text and as a QR code; the list updates without a reload."""
    page = watched.open("/enrolment")
    page.get_by_label("Client’s name").fill("rowan")
    page.get_by_role("button", name="Create a token").click()
    expect(page.locator(".qr svg")).to_be_visible()
    shoot(page, "token")
    command = page.locator(".qr pre").inner_text()
    token = re.search(r"--token (\S+)", command)[1]
    row = page.locator("tr", has_text="rowan")
    expect(row.locator(".tag")).to_have_text("pending")
    path = scene.folder / "rowan" / "client.toml"
    apart(enrol(f"127.0.0.1:{scene.enrolment}", token, path))
    expect(row.locator(".tag")).to_have_text("enrolled")
    page.goto(scene.url + "/enrolment")
    assert token not in page.content()
    page.goto(scene.url + "/clients/rowan")
    act(page, "Revoke", says="certificates and unused tokens")
    expect(page.locator(".head .tag")).to_have_text("revoked")


def test_token_is_cancelled(watched, scene):
    made = scene.control.post("tokens", body={"client": "larch"})
    page = watched.open("/enrolment")
    row = page.locator("tr", has_text="larch")
    row.get_by_role("button", name="Cancel").click()
    page.locator("#confirm").get_by_role("button", name="Cancel the token").click()
    expect(row.locator(".tag")).to_have_text("expired")
    with pytest.raises(FedloomError):
        apart(enrol(f"127.0.0.1:{scene.enrolment}", made["token"], scene.folder / "larch.toml"))


def test_privacy_budget_is_set_and_removed(watched, scene):
    """For a label that no client has, so that other runs start as before."""
    page = watched.open("/privacy")
    fields = [("Epsilon", "3"), ("Delta", "1e-5"), ("Label, name", "nobody")]
    act(page, "Set a budget", says="Each of ", fields=fields, yes="Set the budget")
    row = page.locator("tr", has_text="nobody")
    expect(row).to_contain_text("1e-05")
    [budget] = [each["budget"] for each in scene.control.get("privacy")["populations"] if
                each["label"]]  # fmt: skip
    assert (budget["label"], budget["epsilon"], budget["allow_public"]) == ("nobody", 3, False)
    row.get_by_role("link", name="nobody").click()
    expect(page.get_by_role("heading", name="Clients with nobody")).to_be_visible()
    act(page, "Remove", says="no privacy budget any more", yes="Remove the budget")
    expect(page.locator("tr", has_text="nobody")).not_to_contain_text("1e-05")
    assert scene.control.get("privacy")["populations"][0]["budget"] is None


def test_invalid_name_is_explained_beside_the_form(watched, scene):
    """The input stays."""
    watched.forgiven.append("422")
    page = watched.open("/enrolment")
    page.get_by_label("Client’s name").fill("../etc")
    page.get_by_role("button", name="Create a token").click()
    expect(page.get_by_role("alert").filter(has_text="Expected")).to_be_visible()
    expect(page.get_by_label("Client’s name")).to_have_value("../etc")


def test_run_is_started_from_the_form(watched, scene):
    """A wrong setting is explained beside its field."""
    watched.forgiven.append("422")
    page = watched.open(f"/runs/new?clone={scene.finished}")
    page.get_by_label("Name").fill("formed")
    page.get_by_label("Quorum").fill("99")
    page.get_by_role("button", name="Start the run").click()
    expect(page.get_by_label("Quorum")).to_have_attribute("aria-invalid", "true")
    expect(page.locator("#fault")).to_contain_text("quorum")
    shoot(page, "wrong-setting")
    page.get_by_label("Quorum").fill("2")
    page.get_by_role("button", name="Check").click()
    expect(page.locator(".health").first).to_contain_text("are valid")
    page.get_by_label("All other settings").fill("[nonsense]\nx = 1")
    page.get_by_role("button", name="Start the run").click()
    expect(page.locator("#fault")).to_contain_text("nonsense")
    page.get_by_label("All other settings").fill("[config]\ndelay_s = 0.1")
    page.get_by_role("button", name="Start the run").click()
    page.wait_for_url(re.compile(r"/runs/formed-"))
    expect(page.locator("h1")).to_contain_text("formed-")
    expect(page.locator(".head .tag")).to_have_text("finished")


def test_a_new_run_begins_with_a_template_and_no_model(watched, scene):
    """Nobody starts from another run's model by mistake."""
    watched.forgiven.append("422")
    page = watched.open("/runs/new")
    expect(page.get_by_label("Name")).to_have_value("run")
    expect(page.get_by_label("Clients evaluate each model")).to_be_checked()
    expect(page.get_by_label("Initial model")).to_have_value("")
    page.get_by_role("link", name="digits").click()
    expect(page.get_by_label("Rounds")).to_have_value("25")
    page.get_by_role("link", name="the last run").click()
    expect(page.get_by_label("Initial model")).to_have_value("")
    expect(page.get_by_role("link", name="the last run")).to_have_attribute("aria-current", "true")
    page.get_by_role("button", name="Start the run").click()
    expect(page.get_by_label("Initial model")).to_have_attribute("aria-invalid", "true")
    expect(page.locator("#fault")).to_contain_text("a model to start from")


@pytest.mark.parametrize(
    ("width", "scheme"), [(1440, "light"), (390, "dark")], ids=["desktop", "phone"]
)
def test_a_model_is_uploaded_and_checked(watched, scene, axe, tmp_path, *, width, scheme):
    """A file that is no model is refused; one with another tensor fits no client that trained."""
    watched.forgiven += ["400", "422"]
    page = watched.open("/runs/new", viewport={"width": width, "height": 860}, scheme=scheme)
    page.get_by_label("Name").fill("checked")
    page.get_by_label("Cohort goal").fill("2")
    page.get_by_label("Quorum").fill("1")
    (tmp_path / "bad.safetensors").write_bytes(b"no model")
    page.get_by_label("Or upload one").set_input_files(tmp_path / "bad.safetensors")
    expect(page.locator("#upload-state")).to_have_class("error")
    expect(page.locator("#upload-state")).to_contain_text("bad.safetensors: Expected a safetensors")
    shoot(page, f"upload-refused-{width}")
    params = {
        name: np.array(array)
        for name, array in load_file(scene.folder / "initial.safetensors").items()
    }
    save_file({**params, "head": np.zeros(3, np.float32)}, tmp_path / "more.safetensors")
    page.get_by_label("Or upload one").set_input_files(tmp_path / "more.safetensors")
    expect(page.locator("#upload-state")).to_contain_text("more.safetensors:")
    page.get_by_role("button", name="Check").click()
    expect(page.locator("#fleet")).to_contain_text("lack the tensor head")
    assert axe(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    shoot(page, f"fleet-check-{width}")
    save_file(params, tmp_path / "same.safetensors")
    page.get_by_label("Or upload one").set_input_files(tmp_path / "same.safetensors")
    expect(page.locator("#upload-state")).to_contain_text("same.safetensors:")
    page.get_by_role("button", name="Check").click()
    expect(page.locator("#fleet")).not_to_contain_text("lack")
    page.get_by_label("Rounds").fill("1")
    page.get_by_role("button", name="Start the run").click()
    page.wait_for_url(re.compile(r"/runs/checked-"))


@pytest.mark.parametrize("path", ["/", "/runs/{busy}", "/clients/oak"])
def test_viewer_cannot_act(watched, scene, busy, path):
    """Buttons are disabled and show the reason."""
    page = watched.open(path.format(busy=busy), scope="viewer")
    buttons = page.locator("button[data-act]")
    assert buttons.count() > 0
    for button in buttons.all():
        expect(button).to_be_disabled()
