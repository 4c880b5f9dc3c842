"""Log formats."""

import io
import json
import logging

import pytest

from fedloom.cli.common.logging import set_up


@pytest.fixture(autouse=True)
def _restored():
    root = logging.getLogger()
    before, level, uvicorn = root.handlers[:], root.level, logging.getLogger("uvicorn").level
    root.handlers = []  # pytest's own, which `set_up` would close
    yield
    logging.captureWarnings(False)
    root.handlers, root.level = before, level
    logging.getLogger("uvicorn").setLevel(uvicorn)


def test_json_lines_hold_one_record_each():
    """A line holds the fields of `extra` and the traceback, also with newlines in them."""
    stream = io.StringIO()
    set_up("json", stream=stream)
    log = logging.getLogger("fedloom.lines")
    log.info("two\nlines of %s", "text", extra={"client": "ward-3", "path": object})
    try:
        int("bad")
    except ValueError:
        log.exception("failed")
    log.debug("not at this level")
    lines = map(json.loads, stream.getvalue().splitlines())
    first, second = (line for line in lines if line["logger"] == log.name)
    assert first["message"] == "two\nlines of text"
    assert (first["level"], first["logger"], first["client"]) == ("info", "fedloom.lines", "ward-3")
    assert first["time"].endswith("+00:00")
    assert second["error"].endswith("'bad'")


def test_text_lines_have_time_level_logger_and_message():
    """The text format."""
    stream = io.StringIO()
    set_up("text", "debug", stream)
    logging.getLogger("fedloom.lines").debug("hello")
    assert stream.getvalue().endswith(" DEBUG   fedloom.lines hello\n")
