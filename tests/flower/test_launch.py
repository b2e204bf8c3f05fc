"""Runs on a SuperLink, as far as that goes without one."""

import socket
import ssl
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from offbeat.core.errors import InvalidInput
from offbeat.flower.launch.local_cluster import free_port
from offbeat.flower.launch.superlink import RunFailed, SuperLink, _diagnosis, register


@pytest.mark.parametrize("address", ["here", "here:", ":8000", "here:99999", "here:http"])
def test_an_address_is_a_host_and_a_port(address: str) -> None:
    with pytest.raises(InvalidInput, match="must be HOST:PORT"):
        SuperLink(address=address)


def test_trust_is_either_given_or_not_wanted(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="give one of the two"):
        SuperLink(address="a:1", insecure=True, root_certificates=tmp_path)
    with pytest.raises(InvalidInput, match="no such file"):
        SuperLink(address="a:1", root_certificates=tmp_path / "ca.pem")


def test_a_superlink_is_local_if_it_listens_on_loopback() -> None:
    assert SuperLink(address="127.0.0.1:1").local
    assert SuperLink(address="[::1]:1").local
    assert not SuperLink(address="example.org:1").local


def test_no_superlink_is_said_in_a_sentence(tmp_path: Path) -> None:
    from offbeat.flower.launch.certificates import make_credentials

    key = make_credentials(tmp_path / "keys", 1).node_public_key(0)
    address = f"127.0.0.1:{free_port()}"
    with pytest.raises(RunFailed, match=f"no SuperLink answers at {address}: Connection refused"):
        register(SuperLink(address=address, insecure=True), key)


def test_a_superlink_that_cannot_be_reached_is_diagnosed(tmp_path: Path) -> None:
    from offbeat.flower.launch.certificates import make_credentials

    make_credentials(tmp_path / "keys", 1)
    other = tmp_path / "other"
    make_credentials(other, 1)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "keys" / "superlink.pem", tmp_path / "keys" / "superlink.key")
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    with suppress(OSError), context.wrap_socket(connection, server_side=True):
                        pass

        threading.Thread(target=serve, daemon=True).start()
        address = f"127.0.0.1:{server.getsockname()[1]}"
        assert "speaks TLS" in _diagnosis(SuperLink(address=address, insecure=True))
        wrong = _diagnosis(SuperLink(address=address, root_certificates=other / "ca.pem"))
        assert f"is not accepted by {other / 'ca.pem'}" in wrong
        right = _diagnosis(SuperLink(address=address, root_certificates=tmp_path / "keys" / "ca.pem"))
        assert "is it a SuperLink" in right
