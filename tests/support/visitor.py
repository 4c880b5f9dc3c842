"""A browser or a program as a client of a server's TCP port."""

import http.client
import json
import re
import ssl
from dataclasses import dataclass
from urllib.parse import urlencode, urlsplit

from support.patience import PATIENCE_S


@dataclass(frozen=True)
class Answer:
    """What came back.

    Attributes:
        headers: an `http.client.HTTPMessage`.
        text: the body.
    """

    status: int
    headers: object
    text: str

    @property
    def document(self):
        return json.loads(self.text)

    @property
    def kind(self):
        return self.document["error"]["kind"]


class Visitor:
    """Keeps cookies, as a browser does.

    Args:
        site: of the server.
        token: an API token to send with each request.
        ca: PEM file of whom to trust.
    """

    def __init__(self, site, *, token=None, ca=None):
        self.site = site
        self.origin = site.url
        self.cookies = {}
        self.token = token
        self._ca = ca

    def ask(self, method, path, *, form=None, document=None, body=None, **headers):
        """Send a request; header names are given with underscores."""
        parts = urlsplit(self.site.url)
        headers = {name.replace("_", "-"): value for name, value in headers.items()}
        if form is not None:
            body = urlencode(form)
            headers.setdefault("content-type", "application/x-www-form-urlencoded")
        if document is not None:
            body = json.dumps(document)
            headers.setdefault("content-type", "application/json")
        if self.cookies:
            pairs = (f"{name}={value}" for name, value in self.cookies.items())
            headers.setdefault("cookie", "; ".join(pairs))
        if self.token:
            headers.setdefault("authorization", f"Bearer {self.token}")
        if method != "GET" and self.cookies:
            headers.setdefault("origin", self.origin)
        headers = {name: value for name, value in headers.items() if value is not None}
        connection = self._connect(parts)
        try:
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            kind = response.headers.get("content-type", "")
            endless = kind.startswith("text/event-stream")
            text = (response.readline() if endless else response.read()).decode("utf-8", "replace")
        finally:
            connection.close()
        for cookie in response.headers.get_all("set-cookie", ()):
            name, value = re.match(r"([^=]+)=([^;]*)", cookie).groups()
            value = value.strip('"')
            self.cookies.pop(name, None)
            if value:
                self.cookies[name] = value
        return Answer(response.status, response.headers, text)

    def _connect(self, parts):
        if parts.scheme == "http":
            return http.client.HTTPConnection(parts.hostname, parts.port, timeout=PATIENCE_S)
        context = ssl.create_default_context(cafile=self._ca)
        return http.client.HTTPSConnection(
            parts.hostname, parts.port, timeout=PATIENCE_S, context=context
        )

    def log_in(self, name, password, **fields):
        """Send the login form."""
        return self.ask("POST", "/login", form={"name": name, "password": password, **fields})

    @property
    def session(self):
        """The session's secret."""
        return self.cookies[self.site.cookie]
