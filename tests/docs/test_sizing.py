"""docs/sizing.md quotes the figures of benchmarks/README.md."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "sizing.md").read_text("utf-8")
BENCHMARKS = (ROOT / "benchmarks" / "README.md").read_text("utf-8")


@pytest.mark.parametrize(
    ("quoted", "measured"),
    [
        ("| 91 KiB |", "memory of the server for each | < 100 KiB | 91 KiB |"),
        ("602 MiB in use, 887 MiB reserved", "593 MiB, 9 MiB; the sum of one round"),
        ("602 MiB in use, 887 MiB reserved", "0, 887 MiB; resident"),
        ("| 2.96 s of a core |", "server 2.96: gRPC, TLS and the event loop 1.97, fold 0.33"),
        ("| 1.97 s |", "gRPC, TLS and the event loop 1.97"),
        ("| 0.33 s |", "fold 0.33"),
        ("| 0.5 to 1 % of a core |", "the server's CPU meanwhile | < 2 % of a core | 0.5 to 1 % |"),
        (
            "| 6 %; 36 % of a core |",
            "with churn and without rounds | flat | 29, slope 0; 36 %, 6 %",
        ),
        ("| 0.27 to 0.94 million events/s |", "| 300,000 | 0.27 to 0.94 million |"),
    ],
)
def test_a_figure_is_that_of_its_benchmark(quoted, measured):
    """Change both, or the page says what nobody measured."""
    assert quoted in PAGE
    assert measured in BENCHMARKS
