"""Exact sums: fixed-point addends, coverage, and the `Partial` that a round adds up."""
