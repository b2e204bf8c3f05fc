"""Runs on a SuperLink, as far as that goes without one."""

from pathlib import Path

import pytest

from offbeat.core.errors import InvalidInput
from offbeat.flower.launch.local_cluster import free_port
from offbeat.flower.launch.superlink import RunFailed, SuperLink, register


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
    with pytest.raises(RunFailed, match=f"no SuperLink answers at {address} without TLS"):
        register(SuperLink(address=address, insecure=True), key)
