"""Short-lived certificates and keys: TLS for a SuperLink, and a key pair for each node.

They are for tests and for trying out a secured setup on one machine: anyone who can read the directory can act as the
SuperLink or as a node. The authority's private key is not kept, so that nothing else can be signed with it.
"""

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from offbeat.core.errors import InvalidInput

VALID = timedelta(days=30)


@dataclass(frozen=True)
class Credentials:
    """Paths of the files that `make_credentials` writes into a directory."""

    directory: Path

    @property
    def authority(self) -> Path:
        """The certificate of the authority that signs the SuperLink's."""
        return self.directory / "ca.pem"

    @property
    def certificate(self) -> Path:
        """The SuperLink's certificate."""
        return self.directory / "superlink.pem"

    @property
    def key(self) -> Path:
        """The SuperLink's private key."""
        return self.directory / "superlink.key"

    @property
    def operator(self) -> Path:
        """A client certificate with its private key, for people who start runs through a proxy."""
        return self.directory / "operator.pem"

    def node_key(self, number: int) -> Path:
        """The private key of a node."""
        return self.directory / f"node-{number}"

    def node_public_key(self, number: int) -> Path:
        """The public key of a node."""
        return self.directory / f"node-{number}.pub"


def make_credentials(directory: Path, nodes: int, hosts: Sequence[str] = ()) -> Credentials:
    """Write a certificate authority, the SuperLink's certificate and key, and a key pair for each node.

    The certificate is valid for localhost, 127.0.0.1 and the names in `hosts`.
    """
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise InvalidInput(f"{directory} exists and is not empty: choose another directory")
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    files = Credentials(directory)
    authority_key, server_key = ec.generate_private_key(ec.SECP384R1()), ec.generate_private_key(ec.SECP384R1())
    authority = _certificate("offbeat short-lived authority", authority_key, authority_key, issuer=None)
    server = _certificate("localhost", server_key, authority_key, issuer=authority.subject, hosts=hosts)
    files.authority.write_bytes(authority.public_bytes(serialization.Encoding.PEM))
    files.certificate.write_bytes(server.public_bytes(serialization.Encoding.PEM))
    _write_private(files.key, server_key, serialization.PrivateFormat.PKCS8)
    operator_key = ec.generate_private_key(ec.SECP384R1())
    operator = _certificate("operator", operator_key, authority_key, issuer=authority.subject)
    _write_private(files.operator, operator_key, serialization.PrivateFormat.PKCS8)
    with files.operator.open("ab") as file:
        file.write(operator.public_bytes(serialization.Encoding.PEM))
    for number in range(nodes):
        key = ec.generate_private_key(ec.SECP384R1())
        _write_private(files.node_key(number), key, serialization.PrivateFormat.OpenSSH)
        public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
        files.node_public_key(number).write_bytes(public + b"\n")
    return files


def _certificate(
    name: str,
    key: ec.EllipticCurvePrivateKey,
    signer: ec.EllipticCurvePrivateKey,
    *,
    issuer: x509.Name | None,
    hosts: Sequence[str] = (),
) -> x509.Certificate:
    """A certificate for a key; without an issuer, a self-signed authority."""
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    signing = x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=issuer is None,
        crl_sign=issuer is None,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
    names: list[x509.GeneralName] = [x509.DNSName(host) for host in ("localhost", *hosts)]
    names.append(x509.IPAddress(ipaddress.ip_address("127.0.0.1")))
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer or subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))
        .not_valid_after(now + VALID)
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
        .add_extension(signing, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
    )
    if issuer is not None:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return builder.sign(signer, hashes.SHA384())


def _write_private(path: Path, key: ec.EllipticCurvePrivateKey, form: serialization.PrivateFormat) -> None:
    path.touch(mode=0o600)
    path.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))
