"""The apps are run as apps, not collected as tests."""

collect_ignore = ["apps"]
