"""Records of fedloom's loggers, without those of other packages."""


def ours(caplog):
    """Records of fedloom's own loggers; asyncio may log leftovers of earlier tests."""
    return [record for record in caplog.records if record.name.startswith("fedloom")]
