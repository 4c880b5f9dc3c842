"""The setting `store`: where models and update bodies lie, as a URL without secrets."""

from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Self
from urllib.parse import parse_qs, unquote, urlsplit

from fedloom.protocol.errors import UsageError

FORMS = "s3://BUCKET/PREFIX?endpoint=https://HOST&region=REGION or file:///FOLDER"
_OPTIONS = ("endpoint", "region")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreUrl:
    """A parsed URL of an object store.

    Attributes:
        folder: absolute path of a `file:` store; empty for `s3:`.
        bucket: of an `s3:` store.
        prefix: of all names in the bucket, without slashes at its ends.
        endpoint: URL of the service; empty for AWS.
        region: of the bucket; empty for that of the environment.
    """

    folder: str = ""
    bucket: str = ""
    prefix: str = ""
    endpoint: str = ""
    region: str = ""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse the setting. Its errors do not quote it: it might hold a secret by mistake.

        Raises:
            UsageError: it has another form, or holds credentials.
        """
        found = urlsplit(text)
        if "@" in found.netloc:
            raise UsageError(
                "Expected `store` without credentials: set AWS_ACCESS_KEY_ID and "
                "AWS_SECRET_ACCESS_KEY in the server's environment, or use an instance role."
            )
        if found.scheme == "file" and not found.netloc and not found.query:
            path = PurePosixPath(unquote(found.path))
            if path.is_absolute() and len(path.parts) > 1:
                return cls(folder=str(path))
        if found.scheme == "s3" and found.netloc:
            options = parse_qs(found.query, keep_blank_values=True)
            if any(name not in _OPTIONS or len(each) > 1 for name, each in options.items()):
                raise UsageError(
                    f"Expected {' and '.join(_OPTIONS)} as the options of `store`, got others: "
                    "credentials come from the server's environment."
                )
            given = {name: each[0] for name, each in options.items()}
            endpoint = urlsplit(given.get("endpoint", "https://aws"))
            if (
                endpoint.scheme in ("http", "https")
                and endpoint.hostname
                and "@" not in endpoint[1]
            ):
                return cls(bucket=found.netloc, prefix=found.path.strip("/"), **given)
        raise UsageError(f"Expected `store` as {FORMS}, got another form.")

    def __str__(self) -> str:
        """For messages and logs."""
        if self.folder:
            return f"file://{self.folder}"
        at = f" at {self.endpoint}" if self.endpoint else ""
        return f"s3://{self.bucket}/{self.prefix}{at}"
