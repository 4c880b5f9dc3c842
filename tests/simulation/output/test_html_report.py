"""The report is one page that loads no other file and escapes all names."""

import dataclasses
import json
import re
from html.parser import HTMLParser

import pytest

from fedloom.simulation.output import report
from fedloom.simulation.output.report import Subject
from support.histories import history, result

EVIL = "<script>alert(1)</script>\"'&{{ 7 * 7 }}"
_VOID = {"meta", "link", "img", "br", "i-"}


class Page(HTMLParser):
    """Collects tags, texts and addresses like a browser."""

    def __init__(self, html):
        super().__init__()
        self.tags, self.text, self.open = [], "", []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in _VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] not in ("style", "script"):
            self.text += data

    def attributes(self, name):
        return [attrs[name] for _, attrs in self.tags if name in attrs]


def _page(records=None, subject=None, **changes):
    records = history(12, abandoned={4}) if records is None else records
    html = report.render(result(records, **changes), subject or Subject(name="digits"))
    page = Page(html)
    assert page.open == []
    return html, page


def test_the_page_is_complete_and_loads_no_other_file():
    """No outside address, and a policy that forbids loading."""
    html, page = _page(subject=Subject(name="digits", heat_map=b"\x89PNG"))
    assert not re.search(r"https?:|//[a-z]+\.|@import|url\(", html)
    assert all(src.startswith("data:image/png;base64,") for src in page.attributes("src"))
    assert page.attributes("href") == []
    policy = next(text for text in page.attributes("content") if "default-src" in text)
    assert "default-src 'none'" in policy
    assert {"link", "iframe", "object"}.isdisjoint(tag for tag, _ in page.tags)


def test_names_from_users_are_escaped():
    """Names, settings, metrics, reasons, workers: none becomes a tag or a formula."""
    records = [
        dataclasses.replace(
            record,
            test={EVIL: 0.5},
            reason=EVIL,
            counts={EVIL: 3},
            shares=tuple(dataclasses.replace(s, worker=EVIL) for s in record.shares),
        )
        for record in history(3, abandoned={2})
    ]
    subject = Subject(
        name=EVIL,
        settings={EVIL: EVIL},
        environment={EVIL: EVIL},
        command=EVIL,
        partition={EVIL: EVIL},
    )
    html, page = _page(records, subject, engine=EVIL, stopped=EVIL)
    assert [tag for tag, _ in page.tags].count("script") == 1
    assert "<script>alert" not in html
    assert page.text.count(EVIL) > 8
    assert "49" not in page.text.split("Rounds", 1)[0]


def test_the_page_has_the_results():
    """Last and best metric, rounds, abandoned rounds, time, engine, advice."""
    records = history(30, abandoned={4})
    subject = Subject(
        name="digits", settings={"train": {"epochs": 5}}, command="fedloom simulate x"
    )
    _, page = _page(records, subject)
    last = records[-1].test["accuracy"]
    for told in (
        f"{last:.2%}",
        "1 abandoned",
        "Too few clients",
        "train.epochs",
        "resident: chosen",
    ):
        assert told in page.text
    assert "fedloom simulate x" in page.text
    assert "Finished" in page.text


def test_the_page_shows_how_to_load_a_stored_model(tmp_path):
    _, page = _page(folder=tmp_path)
    assert f"load_file({str(tmp_path / 'model.safetensors')!r})" in page.text
    _, page = _page(folder=None)
    assert "load_file" not in page.text


@pytest.mark.parametrize(
    "records",
    [
        (),
        history(1),
        history(1, virtual=False),
        history(4, diverged_from=1),
        history(2, abandoned={1, 2}),
        history(6, test_every=6, workers=1),
        [dataclasses.replace(r, test={}, training={}, counts={}, shares=()) for r in history(2)],
    ],
    ids=["none", "one", "no devices", "diverged", "all abandoned", "rare tests", "nothing"],
)
def test_unusual_simulations_have_a_report(records):
    _, page = _page(records)
    assert "nan" not in page.text.lower().replace("finance", "")


def test_a_long_simulation_is_thinned_with_a_note():
    """The file stays small; the first and last rounds stay."""
    html, page = _page(history(5000, test_every=1))
    assert len(html) < 700_000
    assert "of 5,000 rounds" in page.text
    rows = [tag for tag, _ in page.tags].count("tr")
    assert rows <= report.MAX_ROWS + 10
    shown = report.chosen(history(5000), 200)
    assert len(shown) <= 200
    assert (shown[0].round, shown[-1].round) == (1, 5000)


def test_pointer_data_are_valid():
    """Positions are percentages in ascending order; the page's script uses nothing else."""
    _, page = _page(history(20, diverged_from=15))
    hovers = [
        json.loads(text, parse_constant=pytest.fail) for text in page.attributes("data-hover")
    ]
    assert len(hovers) == 7
    for columns in hovers:
        places = [column[0] for column in columns]
        assert places == sorted(places)
        assert 0 <= places[0] <= places[-1] <= 100


def test_paths_stay_within_their_frame():
    _, page = _page(history(40))
    for path in page.attributes("d"):
        numbers = [float(text) for text in re.findall(r"-?\d+\.?\d*", path)]
        assert all(-0.1 <= number <= 1000.1 for number in numbers)


def test_the_spread_over_clients_is_charted():
    html, page = _page(history(12, abandoned={4}, spread=True))
    assert html.count('class="area band-training"') == 2 * 2  # drawn, and in the legend
    assert "10th to 90th percentile" in page.text
    assert "over clients by round" in page.text
    assert "over clients" not in _page()[1].text
