"""Plots: what the pointer and the keys show, a shared zoom, and files."""

import csv
import re

import pytest
from playwright.sync_api import expect

from support.browser import DESKTOP, OUT, PHONE, shoot


@pytest.fixture(scope="module")
def twins(scene):
    """Two finished runs of different lengths."""
    found = []
    for rounds in (8, 12):
        run = scene.submit(name=f"of-{rounds}", rounds=rounds, config={"delay_s": 0.05})
        scene.until(run, rounds)
        found.append(run)
    return found


def plot(page, title, exact=False):
    """A figure by its title, once it is drawn."""
    figure = page.locator("figure", has=page.locator("figcaption > span", has_text=title)).first
    expect(figure.locator("canvas")).to_be_visible()
    return figure


def point(page, figure, share, height=0.5):
    """Move the pointer to a share of a plot's width."""
    over = figure.locator(".u-over")
    over.scroll_into_view_if_needed()
    box = over.bounding_box()
    page.mouse.move(box["x"] + share * box["width"], box["y"] + height * box["height"])
    return figure.locator(".tip")


def test_pointer_names_the_round_its_value_and_the_band(watched, scene, twins):
    """As the API gives them; the other plots of the page follow."""
    page = watched.open(f"/runs/{twins[0]}")
    loss, accuracy = plot(page, "Loss"), plot(page, "Accuracy")
    tip = point(page, loss, 0.0)
    expect(tip.locator("strong")).to_have_text("Round 1")
    curve = scene.control.get("runs", twins[0], "curves")["training"]["loss"]
    row = tip.locator("div", has_text="training")
    expect(row.locator("b")).to_have_text(f"{curve['mean'][0]:.4g}")
    low, high = curve["low"][0], curve["high"][0]
    expect(row.locator("small")).to_have_text(f"clients {low:.4g} to {high:.4g}")
    expect(accuracy.locator(".tip strong")).to_have_text("Round 1")
    expect(accuracy.locator(".tip b").first).to_have_text(re.compile(r"^\d+\.\d\s%$"))
    shoot(page, "plot-pointer", whole=False)
    page.mouse.move(5, 5)
    expect(tip).not_to_be_visible()


def test_click_opens_the_round(watched, twins):
    page = watched.open(f"/runs/{twins[0]}")
    loss = plot(page, "Loss")
    point(page, loss, 0.999)
    number = loss.locator(".tip strong").inner_text().removeprefix("Round ")
    page.mouse.down()
    page.mouse.up()
    page.wait_for_url(f"**/runs/{twins[0]}/rounds/{number}")


def test_zoom_is_shared_and_undone(watched, twins):
    """By dragging over one plot; a refresh keeps it, a click on it does not open a round."""
    page = watched.open(f"/runs/{twins[1]}")
    loss, accuracy = plot(page, "Loss"), plot(page, "Accuracy")
    everything = page.get_by_role("button", name="Show all")
    expect(everything).not_to_be_visible()
    point(page, loss, 0.4)
    page.mouse.down()
    point(page, loss, 0.8)
    page.mouse.up()
    expect(everything).to_be_visible()
    first = point(page, accuracy, 0.0).locator("strong").inner_text()
    assert int(first.removeprefix("Round ")) > 3
    last = point(page, accuracy, 0.999).locator("strong").inner_text()
    assert int(last.removeprefix("Round ")) < 12
    shoot(page, "plot-zoomed", whole=False)
    everything.click()
    expect(everything).not_to_be_visible()
    expect(point(page, accuracy, 0.0).locator("strong")).to_have_text("Round 1")


def test_keys_read_zoom_and_open(watched, twins):
    page = watched.open(f"/runs/{twins[1]}")
    loss = plot(page, "Loss")
    loss.locator(".plot").focus()
    page.keyboard.press("ArrowRight")
    expect(loss.locator(".said")).to_contain_text("Round 1: training")
    page.keyboard.press("ArrowRight")
    expect(loss.locator(".said")).to_contain_text("Round 2: training")
    page.keyboard.press("+")
    expect(page.get_by_role("button", name="Show all")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("button", name="Show all")).not_to_be_visible()
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/runs/{twins[1]}/rounds/2")


def test_plot_is_downloaded(watched, scene, twins):
    """As a picture, and as its numbers."""
    page = watched.open(f"/runs/{twins[0]}", scheme="dark")
    plot(page, "Loss")
    with page.expect_download() as caught:
        page.get_by_role("button", name="Loss as PNG").click()
    assert caught.value.suggested_filename == f"loss-{twins[0]}.png"
    assert caught.value.path().read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    with page.expect_download() as caught:
        page.get_by_role("button", name="Loss as CSV").click()
    with caught.value.path().open(newline="") as file:
        rows = list(csv.DictReader(file))
    curves = scene.control.get("runs", twins[0], "curves")
    assert [int(row["round"]) for row in rows] == curves["number"]
    for name, column in (("training", "mean"), ("training low", "low"), ("training high", "high")):
        values = [float(row[name]) if row[name] else None for row in rows]
        assert values == curves["training"]["loss"][column]
    assert list(rows[0])[4:] == ["evaluation", "evaluation low", "evaluation high"]


def test_runs_are_compared_over_bytes(watched, scene, twins):
    """The bytes are those of the rounds."""
    page = watched.open(f"/compare?runs={','.join(twins)}")
    page.get_by_role("button", name="per bytes").click()
    loss = plot(page, "Loss, training")
    tip = point(page, loss, 0.0)
    expect(tip.locator("strong")).to_have_text(re.compile(r"^[\d.]+ [kM]?B$"))
    expect(tip.locator("small").first).to_contain_text("round 1")
    with page.expect_download() as caught:
        page.get_by_role("button", name="Loss, training as CSV").click()
    with caught.value.path().open(newline="") as file:
        rows = list(csv.DictReader(file))
    for run in twins:
        found = {int(row[f"{run} round"]): int(row["bytes"]) for row in rows if row[run]}
        spent = 0
        for number in range(1, max(found) + 1):
            clients = scene.round(run, number)["clients"]
            spent += clients["bytes_up"] + clients["bytes_down"]
            assert found.get(number, spent) == spent
        assert len(found) >= 8
    page.get_by_role("button", name="per time").click()
    page.wait_for_timeout(400)  # until it is drawn anew
    expect(point(page, loss, 0.0).locator("strong")).to_have_text(re.compile("^after [0-9.]+ s$"))
    with page.expect_download() as caught:
        page.get_by_role("button", name="Loss, training as CSV").click()
    with caught.value.path().open(newline="") as file:
        rows = list(csv.DictReader(file))
    for run in twins:
        began = scene.round(run, 1)["opened_at"]
        found = {int(row[f"{run} round"]): float(row["seconds"]) for row in rows if row[run]}
        assert found[1] > 0
        for number, seconds in found.items():
            wanted = scene.round(run, number)["closed_at"] - began
            assert seconds == pytest.approx(wanted, abs=1e-3)


@pytest.mark.parametrize("viewport", [DESKTOP, PHONE])
def test_tip_of_long_names_fits_its_plot(watched, scene, twins, viewport):
    """It hides neither values nor other plots; the picture's key is not cut off."""
    name = "wards-of-the-general-hospital-north-2026"
    run = scene.submit(name=name, rounds=3, config={"delay_s": 0.05})
    scene.until(run, 3)
    page = watched.open(f"/compare?runs={run},{','.join(twins)}", viewport=viewport)
    loss = plot(page, "Loss, training")
    loss.scroll_into_view_if_needed()
    for place in (0.0, 0.15, 0.49, 0.51):
        box, over = point(page, loss, place).bounding_box(), loss.bounding_box()
        assert box["x"] >= over["x"] - 1
        assert box["x"] + box["width"] <= over["x"] + over["width"] + 1
    tip = point(page, loss, 0.0)
    inside = tip.evaluate("e => e.scrollWidth - e.clientWidth")
    assert inside <= 0
    shoot(page, f"plot-tip-long-{viewport['width']}", whole=False)
    with page.expect_download() as caught:
        page.get_by_role("button", name="Loss, training as PNG").click()
    caught.value.save_as(OUT / f"plot-long-{viewport['width']}.png")
    text = page.evaluate("""async (bytes) => {
      const image = await createImageBitmap(new Blob([new Uint8Array(bytes)]));
      const canvas = new OffscreenCanvas(image.width, image.height);
      const ctx = canvas.getContext("2d");
      ctx.drawImage(image, 0, 0);
      const { data } = ctx.getImageData(image.width - 4, 0, 4, 60);
      return new Set(data.filter((_, i) => i % 4 === 0)).size;
    }""", list(caught.value.path().read_bytes()))  # fmt: skip
    assert text == 1  # the right margin of the key is empty


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_titles_and_keys_do_not_touch(watched, twins, scheme, axe):
    """On a phone, with the longest names."""
    page = watched.open(f"/compare?runs={','.join(twins)}", viewport=PHONE, scheme=scheme)
    figure = plot(page, "Loss, training")
    title = figure.locator("figcaption > span").first.bounding_box()
    key = figure.locator(".key").bounding_box()
    assert key["y"] >= title["y"] + title["height"] - 1
    assert key["x"] + key["width"] <= PHONE["width"]
    shoot(page, f"compare-phone-{scheme}")
    assert axe(page) == []
