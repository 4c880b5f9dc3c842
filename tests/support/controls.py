"""All controls of the console's pages, read from the templates, and the pressed ones.

The target and the text of a control form its name, so that a control pressed in the browser can be
identified. Computed parts of a template are wildcards: `link /runs/* *` is every link to a run.
"""

import re
from html.parser import HTMLParser

from fedloom.server.web.render import HERE

TEMPLATES = HERE / "templates"

ACT = re.compile(r"ui\.act\(\"([^\"]+)\", (.*?), \"")
ANY = "\0"

WATCH = """(() => {
  const told = (key) => window.pressedControl(key.replace(/\\s+/g, " ").trim());
  const place = (e) => e.closest("form")?.getAttribute("action") ?? "";
  const dataOf = (e) => e.getAttributeNames().find((name) => name.startsWith("data-"));
  let act = null;
  addEventListener("click", (event) => {
    const e = event.target.closest?.("button, a");
    if (!e) return;
    if (e.tagName === "A") return told(`link ${e.getAttribute("href")} ${e.textContent}`);
    act = e.dataset.act && !e.dataset.bulk ? e : e.closest("#confirm") ? act : null;
    if (act === e) return;
    const data = dataOf(e);
    if (e.id || data) told(`button ${e.id ? "#" + e.id : data}`);
    else told(`button ${place(e)} ${e.textContent}`);
  }, true);
  addEventListener("submit", (event) => {
    const form = event.target;
    if (!form.closest("#confirm")) return told(`form ${form.getAttribute("action")}`);
    if (act) told(`act ${act.textContent} ${act.dataset.act.split("/").pop()}`);
  }, true);
  addEventListener("change", (event) => {
    const e = event.target;
    if (e.name || dataOf(e)) told(`field ${place(e)} ${e.name || dataOf(e)}`);
  }, true);
})();"""
"""Runs in every page before its own scripts, and tells what is pressed."""


class _Reader(HTMLParser):
    """Names the controls of one template."""

    def __init__(self):
        super().__init__()
        self.found = set()
        self._form = ""
        self._open = None

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        if tag == "form":
            self._form = given.get("action", "")
            if self._form:
                self.found.add(f"form {self._form}")
        elif tag in ("input", "select", "textarea") and given.get("type") != "hidden":
            name = given.get("name") or next(n for n in given if n.startswith("data-"))
            self.found.add(" ".join(f"field {self._form} {name}".split()))
        elif tag == "button" and "data-act" not in given:
            self._begin_button(given)
        elif tag == "a" and given.get("href", "").startswith(("/", ANY)):
            self._open = [f"link {given['href']} "]

    def _begin_button(self, given):
        data = next((name for name in given if name.startswith("data-")), "")
        if given.get("id") or data:
            self.found.add(f"button #{given['id']}" if given.get("id") else f"button {data}")
        elif self._form:  # others are closed by name in dialogs
            self._open = [f"button {self._form} "]

    def handle_data(self, data):
        if self._open is not None:
            self._open.append(data)

    def handle_endtag(self, tag):
        if tag in ("a", "button") and self._open is not None:
            self.found.add(re.sub(r"\s+", " ", "".join(self._open)).strip())
            self._open = None
        if tag == "form":
            self._form = ""


def controls_of(source):
    """The names of the controls in a template's text; `*` is a wildcard.

    >>> sorted(controls_of('<form action="/runs/{{ run }}"><select name="of"></select></form>'))
    ['field /runs/* of', 'form /runs/*']
    """
    acts = {
        f"act {label} {url.rpartition('/')[2].strip(chr(34))}" for label, url in ACT.findall(source)
    }
    plain = re.sub(r"{#.*?#}|{%.*?%}", "", source, flags=re.DOTALL)
    reader = _Reader()
    reader.feed(re.sub(r"{{.*?}}", ANY, plain, flags=re.DOTALL))
    reader.close()
    return {name.replace(ANY, "*") for name in reader.found} | acts


def controls():
    """Every control of every template, each with the first template that has it."""
    found = {}
    for path in sorted(TEMPLATES.glob("*.html")):
        for name in controls_of(path.read_text()):
            found.setdefault(name, path.name)
    return found


def is_pressed(control, pressed):
    """Whether a control was pressed; a field that a macro draws, in any form.

    >>> is_pressed("field study", {"field /runs study"}), is_pressed("link /a", {"link /ab"})
    (True, False)
    """
    words = re.escape(control).replace(r"\*", ".*")
    pattern = re.compile(re.sub(r"^field\\ (?=[^/]*$)", r"field (/\\S* )?", words))
    return any(pattern.fullmatch(name) for name in pressed)
