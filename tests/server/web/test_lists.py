"""Lists of the console: what their links say, and their files."""

import asyncio
import csv
import io
import re
import threading
from html import unescape
from typing import ClassVar
from urllib.parse import quote

import pytest
import sqlalchemy as sa

from fedloom.server.http import csv_files
from fedloom.server.http.csv_files import PIECE, as_csv
from fedloom.server.ledger import Ledger, tables
from fedloom.server.ledger.access.tables import audit
from fedloom.server.ledger.audit_trail import Trail
from fedloom.server.queries import audit as queries_of_audit
from fedloom.server.queries.audit import AuditEntry
from support.archive import digest_of, past
from support.big_ledger import RUN, name_of
from support.door import Door, _Connection
from support.patience import PATIENCE_S

OTHER = "past-0"
LISTS = {
    "runs": ("/runs", ""),
    "clients": ("/clients", ""),
    "models": ("/models", ""),
    "promotions": ("/models", "promotions"),
    "tensors": (f"/models/{digest_of(70)}", "tensors"),
    "audit": ("/audit", ""),
    "tokens": ("/enrolment", ""),
    "rounds": (f"/runs/{RUN}/rounds", ""),
    "members": (f"/runs/{RUN}/rounds/9", ""),
    "refusals": (f"/runs/{RUN}", "refusals"),
    "tasks": (f"/clients/{name_of(7)}", ""),
    "budgets": ("/privacy", ""),
    "private-runs": ("/privacy", "runs"),
    "spenders": ("/privacy", "clients"),
    "compared": (f"/compare?runs={RUN},{OTHER}", ""),
}
"""The page of each list, and the prefix of the list's values in its URL."""

SAMPLE = [
    name
    if name in ("clients", "rounds", "compared")
    else pytest.param(name, marks=pytest.mark.long)
    for name in LISTS
]
"""For the tests that ask for every column of a list."""

STATES = ("clients", "tokens", "rounds", "members", "tasks")
"""Lists that refuse an unknown state."""


@pytest.fixture(scope="module")
def door(tmp_path_factory):
    """A server with a long history."""
    state = tmp_path_factory.mktemp("lists") / "state"
    state.mkdir()
    past(state)
    ledger = Ledger.in_directory(state)
    for number in (68, 70, 69):
        ledger.promote(digest_of(number), note=f"for {number % 3}")
    ledger.set_privacy_budget("site=north", 8.0, 1e-6, allow_public=True, who="ada")
    with ledger._write() as connection:
        row = connection.execute(sa.select(tables.runs)).mappings().one()
        more = {**row, "id": OTHER, "committed": 3, "created_at": row["created_at"] - 1}
        connection.execute(tables.runs.insert(), [more])
    ledger.close()
    with Door(state) as door:
        yield door


def of_list(text, prefix):
    """A page's list: the section of its prefix, or the page without those of other lists."""
    for section in re.findall(r"<section\b.*?</section>", text, re.DOTALL):
        found = re.search(r'id="(\w+)\.columns"', section)
        if found and found[1] == prefix:
            return section
        if found:
            text = text.replace(section, "")
    assert not prefix
    return text


def asking(path, prefix, **values):
    """A list's URL with values of its own."""
    query = "&".join(f"{prefix}{'.' * bool(prefix)}{name}={v}" for name, v in values.items())
    return f"{path}{'&' if '?' in path else '?'}{query}"


def get(door, path):
    """A page's status, text and headers."""
    connection = _Connection(door.directory / "control.sock")
    connection.request("GET", path.partition("#")[0], headers={"accept": "text/html"})
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text, answer.headers


def table(door, path):
    """A list's file as rows by column."""
    status, text, headers = get(door, path)
    assert (status, headers.get_content_type()) == (200, "text/csv"), text
    return list(csv.DictReader(io.StringIO(text, newline="")))


def links(text, what):
    """Targets of links that contain a text."""
    return [unescape(found) for found in re.findall(r'href="([^"]+)"', text) if what in found]


@pytest.mark.parametrize("name", SAMPLE)
def test_every_column_sorts_both_ways(door, name):
    """A header leads to the list sorted by it, and then to the reverse."""
    path, prefix = LISTS[name]
    text = of_list(get(door, path)[1], prefix)
    heads = re.findall(r'<th scope="col"[^>]*><a class="sort" href="([^"]+)"', text)
    assert len(heads) >= 5
    own = name not in ("private-runs", "compared")  # orders that no column has
    assert text.count("aria-sort=") == own
    for head in map(unescape, heads):
        status, found, _ = get(door, head)
        found = of_list(found, prefix)
        assert status == 200, head
        [way] = re.findall(r'<th scope="col"[^>]*aria-sort="(\w+)"', found)
        [again] = re.findall(r'aria-sort="\w+"><a class="sort" href="([^"]+)"', found)
        other = of_list(get(door, unescape(again))[1], prefix)
        assert {way, *re.findall(r'aria-sort="(\w+)"', other)} == {"ascending", "descending"}, head


@pytest.mark.parametrize("name", LISTS)
def test_file_has_all_rows_of_the_filter(door, name):
    """With every column of the picker, in the order of the page."""
    path, prefix = LISTS[name]
    text = of_list(get(door, path)[1], prefix)
    [link] = links(text, "as=csv")
    rows = table(door, link)
    names = re.findall(r'name="(?:\w+\.)?columns" value="([^"]+)"', text)
    assert list(rows[0]) == [unescape(name) for name in names]
    at_once = len(re.findall(r'<tr id="(?!shape|certificate|row-)', text))
    assert len(rows) >= at_once > 0
    assert "Next" in text or len(rows) == at_once


@pytest.mark.parametrize("name", SAMPLE)
def test_sorted_file_is_sorted(door, name):
    """By each column: numbers by value, texts, and rows without a value last."""
    path, prefix = LISTS[name]
    columns = list(table(door, asking(path, prefix, **{"as": "csv"}))[0])
    for column in columns:
        if column in UNLIKE_THEIR_ORDER:
            continue
        for sign in ("", "-"):
            rows = table(door, asking(path, prefix, sort=quote(f"{sign}{column}"), **{"as": "csv"}))
            texts = [row[column] for row in rows]
            known = [text for text in texts if text]
            if column != "label":  # all clients have the label ""
                assert texts == known + [""] * (len(texts) - len(known)), column
            try:
                values = [float(text) for text in texts if text]
            except ValueError:
                values = texts if column == "label" else known
            assert values == sorted(values, reverse=bool(sign)), (column, sign)


UNLIKE_THEIR_ORDER = ("labels", "took_s", "state", "shape", "detail", "task")
"""Columns whose file holds something else than what they are sorted by."""


def test_lists_of_a_page_keep_each_other(door):
    """Each link of one list keeps order, filters, columns and page of the others."""
    values = "label=site%3Dnorth&sort=-spent&runs.sort=state&runs.q=a&clients.sort=-runs"
    more = "&clients.columns=client,runs&clients.page=2"
    status, text, _ = get(door, f"/privacy?{values}{more}")
    assert status == 200
    for prefix in ("", "runs", "clients"):
        mine = prefix and f"{prefix}."
        found = [link for link in links(of_list(text, prefix), "?") if "/privacy?" in link]
        links_of = [link for link in found if f"{mine}sort=" in link or f"{mine}as=" in link]
        assert len(links_of) >= 2
        for link in links_of:
            for value in f"{values}{more}".split("&"):
                name = value.partition("=")[0]
                if name.rpartition(".")[0] != prefix or name == "label":
                    assert f"{value}&" in f"{link.replace('#', '&')}&", link
            assert link.endswith(f"#{prefix}" if prefix else "n") or not prefix, link
    hidden = re.findall(r'type="hidden" name="([^"]+)"', of_list(text, "runs"))
    assert {"label", "sort", "runs.sort", "clients.sort", "clients.columns"} <= set(hidden)
    heads = re.findall(r'<a class="sort" href="[^"]+"[^>]*>([^<]+)', of_list(text, "clients"))
    assert heads == ["Client", "Private runs"]


def test_lists_of_a_page_are_independent(door):
    """One is filtered; the others are not."""
    text = get(door, f"/privacy?clients.q={name_of(7)}")[1]
    assert re.findall(r'<tr id="spender-([^"]+)"', text) == [name_of(7)]
    assert len(re.findall(r'<tr id="run-', text)) >= 1
    text = get(door, f"/runs/{RUN}?refusals.q={name_of(7)}&refusals.code=nothing")[1]
    assert "No refusal matches" in text
    assert "Latest rounds" in text


def test_compared_runs_are_listed_first(door):
    """They are ticked where they are seen, however old they are."""
    tick = r'type="checkbox" name="runs" value="([^"]+)"( checked)?'
    listed = re.findall(tick, get(door, "/compare")[1])
    oldest = listed[-1][0]
    again = re.findall(tick, get(door, f"/compare?runs={oldest}")[1])
    assert again == [(oldest, " checked"), *listed[:-1]]
    assert len(listed) > 1


def test_tasks_of_a_client_are_those_of_the_ledger(door):
    """Sorted by a metric, and filtered by their state."""
    path = f"/clients/{name_of(7)}"
    every = table(door, f"{path}?as=csv")
    ledger = door.contexts.storage.ledger
    parts = {(p.run, p.round): p for p in ledger.parts_of(name_of(7), limit=0)}
    assert [(r["run"], int(r["round"])) for r in every] == list(parts)
    found = table(door, f"{path}?state=reported&sort=-metric.loss&as=csv")
    losses = [float(row["metric.loss"]) for row in found]
    assert losses == sorted(losses, reverse=True)
    wanted = [p.training["values"]["loss"] for p in parts.values() if p.phase == "reported"]
    assert sorted(losses) == sorted(wanted)


def test_file_has_the_filter_and_order_of_the_page(door):
    rows = table(door, f"/runs/{RUN}/rounds/9?state=failed&sort=-client&as=csv")
    names = [row["client"] for row in rows]
    assert names
    assert names == sorted(names, reverse=True)
    assert {row["state"] for row in rows} == {"failed"}
    rounds = table(door, f"/runs/{RUN}/rounds?sort=metric.loss&as=csv")
    losses = [float(row["metric.loss"]) for row in rounds]
    assert losses == sorted(losses)
    assert len(losses) == 70


def test_links_keep_filters_order_and_columns(door):
    path = "/clients?q=ward&label=site%3Dnorth&sort=-success&columns=client,success&page=1"
    text = get(door, path)[1]
    usual = "/clients?q=ward&label=site%3Dnorth&sort=-success"  # the usual columns
    for link in set(links(text, "sort=")) - {usual}:
        assert "q=ward" in link, link
        assert "label=site%3Dnorth" in link, link
        assert "columns=client,success" in link, link
    assert 'type="hidden" name="sort" value="-success"' in text
    assert 'type="hidden" name="columns" value="client,success"' in text
    heads = re.findall(r'<a class="sort" href="[^"]+"[^>]*>(\w+)', text)
    assert heads == ["Client", "Success"]
    [live] = re.findall(r'hx-get="([^"]+)"', text)
    assert "sort=-success" in live
    assert "label=site%3Dnorth" in live


def test_pages_continue_each_other(door):
    first = get(door, "/clients?sort=-counted")[1]
    [link] = links(first, "page=2")
    second = get(door, link)[1]

    def names(text):
        return re.findall(r'data-pick="([^"]+)"', text)

    assert len(names(first)) == len(names(second)) == 100
    assert not set(names(first)) & set(names(second))
    whole = [row["client"] for row in table(door, "/clients?sort=-counted&as=csv")]
    assert names(first) + names(second) == whole[:200]


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ({"sort": "nothing"}, "Expected a column to sort by"),
        ({"page": "0"}, "Expected page as a number"),
        ({"page": "x"}, "Expected page as a number"),
        ({"page": "00000000119999999999999999"}, "Expected page as a number"),
        ({"columns": "nothing"}, "Expected columns of"),
        ({"state": "nothing"}, "Expected state as one of"),
    ],
)
@pytest.mark.parametrize("name", LISTS)
def test_wrong_value_is_explained(door, query, words, name):
    """Not ignored: another list than the asked one would be shown without a word."""
    if "state" in query and name not in STATES:
        pytest.skip("any state may be asked for, or there are none")
    path, prefix = LISTS[name]
    status, text, _ = get(door, asking(path, prefix, **query))
    assert status == 422
    assert words in unescape(text)


def test_metrics_are_columns_that_are_chosen(door):
    """The usual ones without a choice; one that no row has is empty, not an error."""
    text = get(door, "/models")[1]
    assert re.findall(r">([A-Z]\w+)<span class=\"way\"", text)[3:5] == [
        "Loss", "Accuracy",
    ]  # fmt: skip
    assert re.search(r"\d\d\.\d\xa0%", text)
    text = get(door, "/models?columns=model,metric.accuracy")[1]
    assert "metric.loss" not in re.findall(r"<th.*?sort=-?([\w.]+)", text)
    rows = table(door, "/models?columns=model,metric.f1&as=csv")
    assert {row["metric.f1"] for row in rows} == {""}


def test_metrics_of_any_name_are_columns(tmp_path):
    """Clients choose their names, with commas and quotes; each link of the page works."""
    names = ["accuracy, class 1", 'top"5', "100 %2C", "<b>&", "it's"]
    (tmp_path / "state").mkdir()
    past(tmp_path / "state")
    ledger = Ledger.in_directory(tmp_path / "state")
    with ledger._write() as connection:
        values = {"values": dict.fromkeys(names, 0.5)}
        its = tables.rounds.update().filter_by(run=RUN, number=70)
        connection.execute(its.values(evaluation=values))
    ledger.close()
    with Door(tmp_path / "state") as door:
        path = f"/runs/{RUN}/rounds"
        keys = re.findall(r'name="columns" value="(metric[^"]+)"', get(door, path)[1])
        chosen = quote(",".join(unescape(key) for key in keys), safe=",")
        status, text, _ = get(door, f"{path}?columns=round,{chosen}")
        assert status == 200
        heads = re.findall(r'<th scope="col"[^>]*>(?:<a[^>]*>)?([^▲▼]*?)(?:<span|</th>)', text)
        assert {unescape(head).lower() for head in heads} >= {name.lower() for name in names}
        for link in links(text, "sort=") + links(text, "columns="):
            assert get(door, link)[0] == 200, link


def test_formulas_are_text_in_a_file():
    """RFC 4180: line ends, quotes; numbers stay numbers."""
    evil = ["=HYPERLINK(1)", "＝1+1", "＠x", "+1", "-1", "@x", "\tx", "\rx", "\nx"]
    text = as_csv([["a", "=b"]] + [[value, -1.5] for value in evil] + [['q"uote', None]])
    rows = list(csv.reader(io.StringIO(text, newline="")))
    assert rows[0] == ["a", "'=b"]
    assert [row[0] for row in rows[1:-1]] == [f"'{value}" for value in evil]
    assert {row[1] for row in rows[1:-1]} == {"-1.5"}
    assert rows[-1] == ['q"uote', ""]
    assert text.endswith('"q""uote",\r\n')
    assert as_csv([["t"], [True], [False], [1]]) == "t\r\ntrue\r\nfalse\r\n1\r\n"


@pytest.mark.long
def test_a_large_file_does_not_hold_up_the_server(tmp_path, monkeypatch):
    """The event loop serves devices too: it goes on while 40,000 entries become a file.

    Of these, few are in memory at a time: many would make garbage collections stop all threads.
    """
    entries, seen = 40_000, []
    (tmp_path / "state").mkdir()
    past(tmp_path / "state")
    ledger = Ledger.in_directory(tmp_path / "state")
    with ledger._write() as connection:
        newest = sa.select(audit).order_by(audit.c.id.desc()).limit(1)
        last = connection.execute(newest).mappings().one()
        more = [{**last, "id": last["id"] + 1 + n} for n in range(entries)]
        connection.execute(audit.insert(), more)
    ledger.close()

    class Counted(AuditEntry):
        in_memory: ClassVar[int] = 0

        def __init__(self, **values):
            super().__init__(**values)
            Counted.in_memory += 1

        def __del__(self):
            Counted.in_memory -= 1

    def watched(trail, *asked):
        """The rows; between some of them, the loop has to answer."""
        for number, row in enumerate(listed(trail, *asked)):
            if number % PIECE == PIECE // 2:
                assert threading.get_ident() != loop
                answer = asyncio.run_coroutine_threadsafe(asyncio.sleep(0, number), door._loop)
                assert answer.result(PATIENCE_S) == number
                seen.append(Counted.in_memory)
            yield row

    with Door(tmp_path / "state") as door:
        loop = door.call(threading.get_ident)
        listed = Trail.listed
        monkeypatch.setattr(Trail, "listed", watched)
        monkeypatch.setattr(queries_of_audit, "AuditEntry", Counted)
        status, text, headers = get(door, "/audit?as=csv")
    assert status == 200
    assert text.count("\r\n") > entries
    assert int(headers["content-length"]) == len(text.encode())
    assert len(seen) >= entries // PIECE
    assert 0 < max(seen) <= PIECE


@pytest.mark.parametrize("more", [0, 1])
def test_a_file_has_all_rows_or_is_refused(door, monkeypatch, more):
    """Not a part of them without a word; nor is it cut off after its head was sent."""
    rows = len(table(door, "/enrolment?as=csv"))
    monkeypatch.setattr(csv_files, "MAX_ROWS", rows - more)
    monkeypatch.setattr(csv_files, "PIECE", 7)
    status, text, _ = get(door, "/enrolment?as=csv")
    if not more:
        assert (status, text.count("\r\n")) == (200, rows + 1)
    else:
        assert status == 422
        assert f"More than {rows - 1} rows match" in unescape(text)


def test_a_file_larger_than_memory_is_whole(door, monkeypatch):
    """It is sent from the disk."""
    whole = get(door, "/clients?as=csv")[1]
    monkeypatch.setattr(csv_files, "IN_MEMORY_BYTES", 100)
    monkeypatch.setattr(csv_files, "_SENT_BYTES", 1000)
    assert get(door, "/clients?as=csv")[1] == whole


def test_live_part_is_not_a_file(door):
    """A file is not kept for others."""
    status, _, headers = get(door, "/audit?as=csv&part=live")
    assert (status, headers.get_content_type()) == (200, "text/csv")


def test_name_of_a_file_is_plain(door):
    _, _, headers = get(door, f"/runs/{RUN}/rounds?as=csv")
    assert re.fullmatch(
        rf'attachment; filename="rounds-{RUN}-\d{{8}}T\d{{6}}Z\.csv"',
        headers["content-disposition"],
    )
