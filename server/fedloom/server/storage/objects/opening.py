"""Opens the object store of the settings."""

from pathlib import Path

from fedloom.protocol.errors import UsageError
from fedloom.server.storage.objects.folder import FolderObjects
from fedloom.server.storage.objects.interface import Objects
from fedloom.server.store_url import StoreUrl


def open_objects(url: StoreUrl) -> Objects:
    """Open an object store; nothing is asked of an S3 service yet.

    Raises:
        UsageError: the extra `s3` is not installed.
        StoreFaultError: the folder cannot be created.
    """
    if url.folder:
        return FolderObjects(Path(url.folder))
    try:
        from fedloom.server.storage.objects.s3 import S3Objects  # noqa: PLC0415 - of an extra
    except ModuleNotFoundError as error:
        raise UsageError(
            f"An s3 store needs an extra that is not installed ({error.name} is missing): "
            "pip install 'fedloom[s3]'"
        ) from error
    return S3Objects(url)
