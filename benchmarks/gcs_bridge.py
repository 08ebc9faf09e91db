"""Connects TensorFlow's own gs:// file system, whose addresses are fixed, to a `FakeGcs`.

TensorFlow asks https://www.googleapis.com and https://storage.googleapis.com and has no setting for another
address. But libcurl, which it uses, honours HTTPS_PROXY, and TensorFlow honours CURL_CA_BUNDLE. So the bridge
is a proxy that ends TLS itself, with a certificate made for the run, and hands each request on, one
connection to the fake for each of TensorFlow's. The contents of uploads do not even pass through: the fake's answer to
the first request of an upload names its own address for the rest.
"""

from __future__ import annotations

import datetime
import http.client
import ssl
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from urllib.parse import quote, unquote, urlsplit

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_HOSTS = ("www.googleapis.com", "storage.googleapis.com")
_NOT_HANDED_ON = frozenset({"host", "connection", "proxy-connection", "keep-alive", "transfer-encoding"})
_PIECE = 256 << 10  # bytes


class Bridge:
    """A proxy in a thread, for as long as a ``with`` block lasts.

    Args:
        endpoint: The address of the fake.
    """

    def __init__(self, endpoint: str) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._bundle = Path(self._folder.name) / "ca.pem"
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(_certificate(self._bundle))
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.fake = urlsplit(endpoint).netloc
        self._server.context = context
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> Bridge:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        self._folder.cleanup()

    def environment(self) -> dict[str, str]:
        """Returns the environment variables with which TensorFlow in a child process uses the bridge."""
        proxy = f"http://127.0.0.1:{self._server.server_address[1]}"
        return {
            "HTTPS_PROXY": proxy,
            "https_proxy": proxy,
            "CURL_CA_BUNDLE": str(self._bundle),
            "GOOGLE_AUTH_TOKEN_FOR_TESTING": "none",
            "NO_GCE_CHECK": "true",
        }


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    fake: str
    context: ssl.SSLContext


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def log_message(self, format: str, *args: object) -> None:
        """Logs nothing."""

    def do_CONNECT(self) -> None:
        """Plays the server that was asked for."""
        self._host = self.path.partition(":")[0]
        self.send_response(200)
        self.end_headers()
        self.connection = self.server.context.wrap_socket(self.connection, server_side=True)
        self.rfile, self.wfile = self.connection.makefile("rb"), self.connection.makefile("wb")
        self._fake = http.client.HTTPConnection(self.server.fake)
        try:
            self.close_connection = False
            while not self.close_connection:
                self.handle_one_request()
        except (ssl.SSLError, ConnectionError):
            pass  # The client is gone.
        finally:
            self.close_connection = True
            self._fake.close()

    def _hand_on(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        headers = {name: value for name, value in self.headers.items() if name.lower() not in _NOT_HANDED_ON}
        self._fake.request(self.command, _json_api(self._host, self.path), body, headers)
        answer = self._fake.getresponse()
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in _NOT_HANDED_ON:
                self.send_header(name, value)
        self.end_headers()
        while piece := answer.read1(_PIECE):
            self.wfile.write(piece)
        self.wfile.flush()

    do_GET = do_POST = do_PUT = do_DELETE = _hand_on


def _json_api(host: str, path: str) -> str:
    """Turns a read through the XML API, which the fake does not have, into one through the JSON API."""
    if host != "storage.googleapis.com" or path.startswith(("/storage/v1/", "/upload/")):
        return path
    bucket, _, name = urlsplit(path).path.lstrip("/").partition("/")
    return f"/download/storage/v1/b/{bucket}/o/{quote(unquote(name), safe='')}?alt=media"


def _certificate(path: Path) -> Path:
    """Writes a key and a certificate that signs itself, valid for two days."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "a benchmark of keras_preempt")])
    now = datetime.datetime.now(datetime.timezone.utc)
    day = datetime.timedelta(days=1)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - day)
        .not_valid_after(now + day)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(host) for host in _HOSTS]), critical=False)
        .sign(key, hashes.SHA256())
    )
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        + certificate.public_bytes(serialization.Encoding.PEM)
    )
    return path
