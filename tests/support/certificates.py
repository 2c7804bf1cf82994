"""Certificates made for one test, by an authority of its own."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import trustme

PAST = datetime(2020, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, kw_only=True)
class Certificate:
    """PEM files."""

    certificate: Path
    key: Path

    @property
    def server(self) -> dict[str, Any]:
        """The settings of a server that has it."""
        return {
            "server.tls_certificate": str(self.certificate),
            "server.tls_key": str(self.key),
        }


class Authority:
    """Issues certificates for this machine."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        self._folder = folder
        self._name = name
        self._authority = trustme.CA()
        self.file = folder / f"{name}.pem"
        self._authority.cert_pem.write_to_path(str(self.file))

    def issue(self, *names: str, not_after: datetime | None = None) -> Certificate:
        """A certificate for these names, by default those of this machine."""
        issued = self._authority.issue_cert(
            *(names or ("localhost", "127.0.0.1", "::1")), not_after=not_after
        )
        stem = f"{self._name}-{len(list(self._folder.iterdir()))}"
        certificate = self._folder / f"{stem}.crt"
        key = self._folder / f"{stem}.key"
        for index, pem in enumerate(issued.cert_chain_pems):
            pem.write_to_path(str(certificate), append=index > 0)
        issued.private_key_pem.write_to_path(str(key))
        return Certificate(certificate=certificate, key=key)
