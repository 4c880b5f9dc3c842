"""Masked sums: settings, sizes and thresholds of sessions, words of a body; no cryptography."""
