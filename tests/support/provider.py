"""A small OpenID Connect provider on loopback, which can send false answers."""

import base64
import hashlib
import hmac
import json
import secrets
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

from joserfc import jwt
from joserfc.jwk import RSAKey

SECRET = "the client's secret"


class Provider:
    """Knows one client and one user.

    Attributes:
        claims: additional claims of the ID token.
        lie: the fault of its next answers; empty for none.
        seen: forms that its token endpoint was sent, with their Authorization header.
    """

    def __init__(self, client_id="fedloom"):
        self.client_id = client_id
        self.claims = {
            "email": "ann@example.org",
            "email_verified": True,
            "groups": ["staff", "fl-operators"],
        }
        self.lie = ""
        self.seen = []
        self._codes = {}
        self.keys = [RSAKey.generate_key(2048, {"kid": "one"})]
        handler = type("Handler", (_Handler,), {"provider": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.issuer = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def change_keys(self):
        """Sign with a new key from now on."""
        self.keys = [RSAKey.generate_key(2048, {"kid": secrets.token_hex(4)})]

    def log_in(self, url):
        """The login page's redirect: the next URL of the browser."""
        asked = {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}
        assert asked["response_type"] == "code"
        assert asked["code_challenge_method"] == "S256"
        code = secrets.token_urlsafe(16)
        self._codes[code] = asked
        iss = "https://evil.example" if self.lie == "iss of the answer" else self.issuer
        return f"{asked['redirect_uri']}?code={code}&state={asked['state']}&iss={iss}"

    def discovery(self):
        return {
            "issuer": "https://evil.example" if self.lie == "issuer" else self.issuer,
            "authorization_endpoint": f"{self.issuer}/authorize",
            "token_endpoint": f"{self.issuer}/token",
            "jwks_uri": f"{self.issuer}/keys",
        }

    def token(self, form, authorization):
        """Answer a form at the token endpoint: status and document."""
        self.seen.append((form, authorization))
        asked = self._codes.pop(form.get("code"), None)
        digest = hashlib.sha256(form.get("code_verifier", "").encode()).digest()
        challenge = _base64(digest).decode()
        if asked is None or challenge != asked["code_challenge"]:
            return 400, {"error": "invalid_grant"}
        return 200, {"id_token": self.id_token(asked), "token_type": "Bearer", "access_token": "x"}

    def id_token(self, asked):
        now = int(time.time())
        claims = {
            "iss": self.issuer, "sub": "1", "aud": self.client_id, "iat": now, "exp": now + 300,
            "nonce": asked["nonce"], **self.claims,
        }  # fmt: skip
        claims |= self._lies(now).get(self.lie, {})
        claims = {name: value for name, value in claims.items() if value is not None}
        if self.lie in ("none", "hs256"):
            return self._unsigned(claims)
        if self.lie == "nonsense":
            return "nonsense"
        kid = self.keys[0].kid
        key = RSAKey.generate_key(2048, {"kid": kid}) if self.lie == "key" else self.keys[0]
        return jwt.encode({"alg": "RS256", "kid": kid}, claims, key)

    def _lies(self, now):
        """The changed claims of each lie; None removes one."""
        both = [self.client_id, "another"]
        return {
            "iss": {"iss": "https://evil.example"},
            "aud": {"aud": "another"},
            "azp": {"aud": both, "azp": "another"},
            "no azp": {"aud": both},
            "exp": {"iat": now - 1000, "exp": now - 500},
            "no exp": {"exp": None},
            "nonce": {"nonce": "another"},
            "no nonce": {"nonce": None},
        }

    def _unsigned(self, claims):
        """A token that anyone can make: unsigned, or with the public key as a shared secret."""
        head = {"alg": "none" if self.lie == "none" else "HS256", "kid": self.keys[0].kid}
        text = b".".join(_base64(json.dumps(part).encode()) for part in (head, claims))
        public = self.keys[0].as_pem(private=False)
        mac = b"" if self.lie == "none" else hmac.digest(public, text, "sha256")
        return (text + b"." + _base64(mac)).decode()


def _base64(data):
    return base64.urlsafe_b64encode(data).rstrip(b"=")


class _Handler(BaseHTTPRequestHandler):
    provider: Provider

    def do_GET(self):
        if self.path.endswith("/openid-configuration"):
            self._answer(200, self.provider.discovery())
        elif self.path == "/keys":
            self._answer(200, {"keys": [k.as_dict(private=False) for k in self.provider.keys]})
        else:
            self._answer(404, {})

    def do_POST(self):
        text = self.rfile.read(int(self.headers["content-length"])).decode()
        form = {name: values[0] for name, values in parse_qs(text).items()}
        self._answer(*self.provider.token(form, self.headers.get("authorization")))

    def _answer(self, status, document):
        body = json.dumps(document).encode()
        if self.provider.lie == "no json":
            body = b"<html>"
        if self.provider.lie == "status":
            status = 500
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        """Suppress the access log."""
