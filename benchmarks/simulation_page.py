"""The page of simulation.py's figures: Markdown with SVG plots, from its JSON alone.

The same JSON gives the same bytes, so a test compares the committed page with the committed JSON.
"""

import json
import statistics

import matplotlib as mpl
from simulation_tasks import TASKS

from fedloom.protocol.atomic_files import write_whole
from fedloom.simulation.output import figures
from fedloom.simulation.studies.table import markdown_table

IMAGES = "images"
PEERS = ("naive loop", "naive loop, DataLoader", "pfl-research, 2", "Flower, 2", "FedJAX, 1")
COLUMNS = ("system", "clients/s", "least", "most", "CPU ms")
RATIOS = ("× naive", "× with DataLoader", "× pfl", "× Flower", "× FedJAX")
ABOUT = """\
One epoch of local training in batches of 10, with the same networks, data and batches for every
system and one thread per process. Each system runs in a process of its own and they take turns of a
few rounds, so other load on the machine affects all alike. Ratios are medians over the turns,
clients per second medians over rounds. The number after a system's name is that of its processes.\
"""
PLOTS = {
    "speed": "Clients per second, relative to the naive loop in the same turn",
    "start": "Seconds from start-up to the end of the first round, 2NN",
    "memory": "Peak memory of rounds of 1,000 clients, 2NN (MB)",
}
"""Name of a plot and its title."""


def write(found, page):
    """Write the page, its plots beside it, and the JSON that they are made from.

    Args:
        found: of `measured`, ready for JSON.
        page: path of the Markdown file.
    """
    write_whole(page.with_suffix(".json"), json.dumps(found, indent=1) + "\n")
    (page.parent / IMAGES).mkdir(exist_ok=True)
    for name, bars in plotted(found).items():
        if bars:
            draw(PLOTS[name], bars, page.parent / image(name))
    write_whole(page, markdown(found))


def image(name):
    """Path of a plot, from the page's folder."""
    return f"{IMAGES}/benchmark-{name}.svg"


def plotted(found):
    """Bars of each plot: (label, value)."""
    ratios = [
        (f"{row['task']}: {row['system']}", row["× naive"])
        for row in found["rows"]
        if row["× naive"] and not row["system"].startswith("naive")
    ]
    starts = {name: statistics.median(seconds) for name, seconds in found["start_up_s"].items()}
    return {
        "speed": ratios,
        "start": list(starts.items()),
        "memory": list(found["memory_mb"].items()),
    }


def draw(title, bars, path):
    """Horizontal bars, the values at their ends, ours in another colour."""
    figure, (axes,) = figures.panels(
        title, 9, 1.0 + 0.34 * len(bars), title_size=12, label_size=9, grid="x"
    )
    top = max(value for _, value in bars)
    for place, (label, value) in enumerate(bars):
        colour = figures.BLUE if "fedloom" in label else figures.SKY
        axes.barh(place, value, height=0.62, color=colour)
        axes.text(value + top / 100, place, f"{value:.3g}" if value < 100 else f"{value:,.0f}",
                  va="center", fontsize=9, color=figures.INK)  # fmt: skip
    axes.set_yticks(range(len(bars)), [label for label, _ in bars])
    axes.invert_yaxis()
    axes.set_xlim(0, top * 1.12)
    with mpl.rc_context({"svg.hashsalt": "fedloom", "svg.fonttype": "none"}):
        figure.savefig(path, format="svg", metadata={"Date": None})


def markdown(found):
    """The page."""
    machine = found["machine"]
    parts = [
        "# Simulators compared",
        ABOUT,
        f"    {found['command']}",
        (
            "This page is written by that command; do not edit it. "
            "[`benchmarks/README.md`](../benchmarks/README.md#the-simulator-compared-with-other-systems)"
            " has how the systems are installed, and earlier figures."
        ),
        markdown_table(("", ""), [(name, str(value)) for name, value in facts(machine).items()]),
        busy(machine),
        "## Versions",
        markdown_table(("system", "version"), sorted(found["versions"].items())),
    ]
    parts += missing(found)
    parts += ["## Speed", f"![{PLOTS['speed']}]({image('speed')})"]
    for task in dict.fromkeys(row["task"] for row in found["rows"]):
        parts += section(task, [row for row in found["rows"] if row["task"] == task])
    parts += ["## Start-up", f"![{PLOTS['start']}]({image('start')})", starts(found)]
    parts += ["## Memory", f"![{PLOTS['memory']}]({image('memory')})", memory(found)]
    return "\n\n".join(part for part in parts if part) + "\n"


def facts(machine):
    """What is said of the machine."""
    return {
        "date": machine["at"],
        "processor": machine["cpu"],
        "cores": machine["cpus"],
        "memory": f"{machine['memory_gib']} GiB",
        "load before (1, 5, 15 min)": ", ".join(map(str, machine["load"])),
        "Python, PyTorch": f"{machine['python']}, {machine['torch']}",
        "turns": machine["turns"],
    }


def busy(machine):
    """A warning, if others used the machine."""
    load, cores = machine["load"][0], machine["cpus"]
    if load < cores / 4:
        return ""
    return (
        f"**Others used the machine**: its load was {load:g} on {cores} cores before the first "
        "turn. Rates, start-up and CPU time are worse than on an idle one, and two processes gain "
        "nothing over one. Compare ratios alone."
    )


def missing(found):
    """Systems that were not measured, and why."""
    if not found["skipped"]:
        return []
    lines = "\n".join(f"- {name}: {why}" for name, why in found["skipped"].items())
    return [f"Not measured:\n\n{lines}"]


def section(task, rows):
    """A task's table, and whether its target was met."""
    ratios = [name for name in RATIOS if any(row[name] != "" for row in rows)]
    body = [
        [
            row["system"],
            *(text(row[name]) for name in COLUMNS[1:]),
            *(f"{row[name]:.2f}" if row[name] != "" else "–" for name in ratios),
        ]
        for row in rows
    ]
    target = next((row["target"] for row in rows if row["target"]), "")
    about = TASKS[task]
    return [
        f"### {task}",
        f"{about.clients:,} clients of {about.examples} examples, {about.cohort} a round."
        + (f" Target of `fedloom auto, 2`: {target}." if target else ""),
        markdown_table((*COLUMNS, *ratios), body, right=(*COLUMNS[1:], *ratios)),
    ]


def starts(found):
    """Seconds to the end of the first round, median, least and most."""
    body = [
        (name, *(f"{of(seconds):.1f}" for of in (statistics.median, min, max)))
        for name, seconds in found["start_up_s"].items()
    ]
    head = ("system", "median, s", "least", "most")
    return markdown_table(head, body, right=head[1:])


def memory(found):
    """The sum of the processes' PSS."""
    body = [(name, f"{peak:,.0f}") for name, peak in found["memory_mb"].items()]
    return markdown_table(("system", "MB"), body, right=("MB",))


def text(value):
    """A number of a table."""
    return f"{value:.3g}" if value < 100 else f"{value:,.0f}"
