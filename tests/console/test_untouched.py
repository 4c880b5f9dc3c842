"""Every control is pressed by a test: this last test checks the others."""

from pathlib import Path

import pytest

from support.controls import controls, is_pressed

ELSEWHERE = {
    "link /login/oidc?next=* Log in with *": "tests/server/access/test_oidc.py: it needs a provider"
}
"""Controls that are tried without a browser, and where."""


def test_every_control_was_pressed(request, pressed):
    """A control that no test presses could lead nowhere unnoticed."""
    ran = {Path(item.path).name for item in request.session.items}
    if ran != {path.name for path in Path(__file__).parent.glob("test_*.py")}:
        pytest.skip("it looks at what all the other tests here have pressed")
    left = {name: where for name, where in controls().items() if not is_pressed(name, pressed)}
    assert left.keys() == ELSEWHERE.keys(), {n: w for n, w in left.items() if n not in ELSEWHERE}
