"""The certificate authority of one run: made for it, kept in memory, gone with it.

Only a run that reaches a second host imports this module. The authority signs one certificate per process; nothing
outside the run trusts it, and the run trusts no other authority. A certificate shows that its owner belongs to the run;
which process that is, and whether it may still connect, follows from the fingerprint in the run's `AllowList`. The
certificates name no hosts: processes move.
"""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence
from typing import NoReturn

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from ropewalk.transport.credentials import ProcessCertificate

LIFETIME_S = 365 * 86400.0
"""A backstop only: a certificate is worth nothing once its process is retired or its run has ended."""
_CLOCK_SKEW_S = 86400.0
"""Certificates are valid from this long before they are made, because the clocks of hosts differ."""
_MAX_NAME = 64
"""RFC 5280 limits a common name to this many characters."""


class RunAuthority:
    """Signs the certificates of one run with an ECDSA P-256 key that never leaves this process."""

    def __init__(self, run_id: str, key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate) -> None:
        self.run_id = run_id
        self.ca_pem = certificate.public_bytes(serialization.Encoding.PEM).decode()
        self._key = key
        self._certificate = certificate

    @classmethod
    def create(cls, run_id: str) -> RunAuthority:
        """Create an authority with a new key."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = _name(f"ropewalk run {run_id}")
        certificate = (
            _builder(name, name, key.public_key(), LIFETIME_S)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_key_usage(signs_certificates=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .sign(key, hashes.SHA256())
        )
        return cls(run_id, key, certificate)

    def issue(
        self, process_id: str, *, lifetime_s: float = LIFETIME_S, names: Sequence[str] = ()
    ) -> ProcessCertificate:
        """Issue a certificate with a new key for one process, valid for both ends of a connection.

        Args:
            process_id: name of the process in the run, for people who read the certificate; it proves nothing.
            lifetime_s: seconds from now until the certificate expires.
            names: host names and IP addresses that it is valid for, which browsers ask for; processes do not.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        both_ends = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
        builder = (
            _builder(_name(process_id), self._certificate.subject, key.public_key(), lifetime_s)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(signs_certificates=False), critical=True)
            .add_extension(both_ends, critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )
        if names:
            builder = builder.add_extension(
                x509.SubjectAlternativeName(list(map(_general_name, names))), critical=False
            )
        certificate = builder.sign(self._key, hashes.SHA256())
        return ProcessCertificate(
            cert_pem=certificate.public_bytes(serialization.Encoding.PEM).decode(),
            key_pem=key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            ).decode(),
            ca_pem=self.ca_pem,
            fingerprint=certificate.fingerprint(hashes.SHA256()).hex(),
        )

    def __repr__(self) -> str:
        return f"RunAuthority(run_id={self.run_id!r})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("the authority of a run stays in the launcher; send the certificates that it issues")


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:_MAX_NAME])])


def _builder(
    subject: x509.Name, issuer: x509.Name, public_key: ec.EllipticCurvePublicKey, lifetime_s: float
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(seconds=_CLOCK_SKEW_S))
        .not_valid_after(now + datetime.timedelta(seconds=lifetime_s))
    )


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
