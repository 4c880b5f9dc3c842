"""The data of a new folder until its owner brings some: readings of machines, and notes on them.

Invented, and the same in every folder.
"""

import numpy as np

from fedloom.client.data.columns import Row, TextTable

SITES = ("north", "south", "west")
_ROWS = 240
_NAMES = ("site", "temperature", "vibration", "load", "coolant", "state")


def machines() -> TextTable:
    """Readings of machines in three plants; a tenth of the temperatures is missing."""
    draws = np.random.default_rng(0)
    rows = []
    for number in range(_ROWS * len(SITES)):
        site = number % len(SITES)
        load = draws.uniform(0.2, 1.0)
        worn = draws.random() < (0.3, 0.5, 0.2)[site]  # plants differ
        coolant = ("oil", "water")[int(draws.random() < 0.5)]
        temperature = 40 + 30 * load + 12 * worn - 8 * (coolant == "water") + draws.normal(0, 3)
        vibration = 1 + 2 * load * worn + draws.normal(0, 0.3) + 0.3 * site
        state = "worn" if worn else "good"
        shown = "" if draws.random() < 0.1 else f"{temperature:.1f}"
        cells = [SITES[site], shown, f"{vibration:.2f}", f"{load:.2f}", coolant, state]
        rows.append(Row(number + 2, cells))
    return TextTable(_NAMES, rows)


def notes() -> dict[str, str]:
    """Maintenance notes of each plant, which has machines and words of its own."""
    machines_of = (("pump", "valve"), ("press", "drill"), ("fan", "motor"))
    parts = ("bearing", "seal", "belt", "filter", "sensor")
    found = ("is worn", "runs warm", "is loose", "is good", "leaks oil", "makes noise")
    done = ("Replaced it.", "Cleaned it.", "Will check again.", "No action.", "Ordered a new one.")
    draws = np.random.default_rng(0)
    texts = {}
    for site, kinds in zip(SITES, machines_of, strict=True):
        lines = []
        for _ in range(150):
            kind, part, state, action = (str(draws.choice(o)) for o in (kinds, parts, found, done))
            lines.append(f"The {part} of {kind} {draws.integers(1, 9)} {state}. {action}")
        texts[site] = "\n".join(lines) + "\n"
    return texts
