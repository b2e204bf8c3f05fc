"""The example reverse proxy, with a real nginx: nodes reach the Fleet API, the rest needs a client certificate."""

import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import httpx
import pytest

from offbeat.flower.launch.certificates import Credentials, make_credentials
from offbeat.flower.launch.local_cluster import free_port
from offbeat.flower.launch.superlink import RunFailed, SuperLink, register

CONFIG = Path(__file__).resolve().parents[2] / "deploy" / "nginx.conf"
pytestmark = pytest.mark.skipif(shutil.which("nginx") is None, reason="nginx is not here: apt install nginx")


class Upstream(BaseHTTPRequestHandler):
    """A SuperLink that says which path was asked for."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"] or 0))
        self.send_response(418)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def credentials(tmp_path_factory: pytest.TempPathFactory) -> Credentials:
    return make_credentials(tmp_path_factory.mktemp("proxy") / "certs", 1)


@pytest.fixture(scope="module")
def port(credentials: Credentials, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    upstream = ThreadingHTTPServer(("127.0.0.1", 0), Upstream)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(credentials.certificate, credentials.key)
    upstream.socket = context.wrap_socket(upstream.socket, server_side=True)
    Thread(target=upstream.serve_forever, daemon=True).start()
    folder, found = tmp_path_factory.mktemp("nginx"), free_port()
    text = (
        CONFIG.read_text()
        .replace("listen 9100", f"listen 127.0.0.1:{found}")
        .replace("9101", str(upstream.server_port))
    )
    text = text.replace("/etc/offbeat", str(credentials.directory)).replace("/run/offbeat-nginx.pid", f"{folder}/pid")
    temporary = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    text = text.replace(
        "access_log off;", " ".join(["access_log off;", *(f"{name}_temp_path {name};" for name in temporary)])
    )
    config = folder / "nginx.conf"
    config.write_text(text)
    command = ["nginx", "-p", str(folder), "-e", "stderr", "-c", str(config), "-g", "daemon off;"]
    with subprocess.Popen(command, stderr=None) as nginx:
        deadline = time.monotonic() + 20.0
        while nginx.poll() is None and time.monotonic() < deadline:
            with socket.socket() as probe:
                if not probe.connect_ex(("127.0.0.1", found)):
                    break
            time.sleep(0.05)
        assert nginx.poll() is None, "nginx does not accept the file"
        yield found
        nginx.terminate()
    upstream.shutdown()
    upstream.server_close()


def status(credentials: Credentials, port: int, path: str, certificate: Path | None = None) -> int:
    context = ssl.create_default_context(cafile=str(credentials.authority))
    if certificate is not None:
        context.load_cert_chain(certificate)
    with httpx.Client(verify=context, trust_env=False) as client:
        return client.post(f"https://127.0.0.1:{port}{path}", content=b"x").status_code


def test_only_the_fleet_api_is_open_without_a_client_certificate(credentials: Credentials, port: int) -> None:
    assert status(credentials, port, "/v1/fleet/pull-messages") == 418, "passed on"
    for path in (
        "/v1/control/start-run",
        "/v1/control/register-node",
        "/v1/runtime/x",
        "/docs",
        "/v1/fleet/../control/x",
    ):
        assert status(credentials, port, path) == 403, path
    assert status(credentials, port, "/v1/control/start-run", credentials.operator) == 418
    assert status(credentials, port, "/v1/runtime/x", credentials.operator) == 403


def test_offbeat_presents_the_client_certificate(credentials: Credentials, port: int, tmp_path: Path) -> None:
    """The stand-in behind the proxy answers 418, the proxy itself 403."""
    for certificate, code in ((None, "403"), (credentials.operator, "418")):
        link = SuperLink(
            address=f"127.0.0.1:{port}", root_certificates=credentials.authority, client_certificate=certificate
        )
        with pytest.raises((RunFailed, httpx.HTTPStatusError)) as refused:
            register(link, credentials.node_public_key(0))
        assert code in str(refused.value) or certificate is None
