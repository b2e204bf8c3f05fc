"""Throw-away certificates: TLS accepts them on loopback, Flower accepts the nodes' keys, nobody else can read keys."""

import ssl
from pathlib import Path

import pytest
from flwr.cli.supernode.register import try_load_public_key

from offbeat.core.errors import InvalidInput
from offbeat.flower.launch.certificates import make_credentials


def handshake(client: ssl.SSLContext, server: ssl.SSLContext, name: str) -> None:
    """A TLS handshake in memory: each side reads what the other wrote."""
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [
        client.wrap_bio(down, up, server_hostname=name),
        server.wrap_bio(up, down, server_side=True),
    ]
    for _ in range(4):
        for side in sides:
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue


def test_the_certificate_may_be_for_further_hosts(tmp_path: Path) -> None:
    files = make_credentials(tmp_path / "certificates", 0, hosts=["superlink"])
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(files.certificate, files.key)
    for name in ("superlink", "localhost", "127.0.0.1"):
        handshake(ssl.create_default_context(cafile=str(files.authority)), server, name)


def test_tls_trusts_the_certificate_for_loopback_and_for_nothing_else(tmp_path: Path) -> None:
    files = make_credentials(tmp_path / "certificates", 0)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(files.certificate, files.key)
    client = ssl.create_default_context(cafile=str(files.authority))
    for name in ("127.0.0.1", "localhost"):
        handshake(client, server, name)
    with pytest.raises(ssl.SSLCertVerificationError, match=r"not valid for 'example\.org'"):
        handshake(client, server, "example.org")
    other = make_credentials(tmp_path / "other", 0)
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(ssl.create_default_context(cafile=str(other.authority)), server, "localhost")


def test_every_node_has_its_own_key_which_flower_can_register(tmp_path: Path) -> None:
    files = make_credentials(tmp_path / "certificates", 2)
    assert len({try_load_public_key(files.node_public_key(number)) for number in range(2)}) == 2


def test_private_keys_are_private(tmp_path: Path) -> None:
    files = make_credentials(tmp_path / "certificates", 1)
    assert {path.stat().st_mode & 0o077 for path in (files.key, files.node_key(0))} == {0}


def test_a_directory_with_something_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("")
    with pytest.raises(InvalidInput, match="is not empty"):
        make_credentials(tmp_path, 1)
