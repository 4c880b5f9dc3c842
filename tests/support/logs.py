"""What fedloom logs, apart from what others in this process do."""


def ours(caplog):
    """Records of fedloom's own loggers: asyncio may speak of what an earlier test has left."""
    return [record for record in caplog.records if record.name.startswith("fedloom")]
