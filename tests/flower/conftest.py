"""Excludes the apps from the collection of tests."""

collect_ignore = ["apps"]
