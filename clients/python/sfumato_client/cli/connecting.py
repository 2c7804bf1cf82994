"""Options that say where the services are, who calls, and how channels are encrypted."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from sfumato_client.channel import (
    API_KEY_FILE_VARIABLE,
    API_KEY_VARIABLE,
    Addresses,
    Connection,
    Tls,
    read_api_key,
)

AddressOption = Annotated[
    str | None, typer.Option(help="host:port of all services; default SFUMATO_ADDRESS.")
]
ApiKeyFileOption = Annotated[
    Path | None,
    typer.Option(
        "--api-key-file", help="File that holds the API key; default SFUMATO_API_KEY[_FILE]."
    ),
]
TlsOption = Annotated[
    bool, typer.Option("--tls", help="Encrypt, trusting the public authorities; SFUMATO_TLS=1.")
]
TlsCaOption = Annotated[
    Path | None,
    typer.Option("--tls-ca", help="Encrypt, trusting the authorities of this PEM file."),
]
TlsCertificateOption = Annotated[
    Path | None,
    typer.Option(
        "--tls-certificate", help="PEM file of a certificate of your own, with --tls-key."
    ),
]
TlsKeyOption = Annotated[
    Path | None, typer.Option("--tls-key", help="PEM file of its private key.")
]
InsecureOption = Annotated[
    bool,
    typer.Option(
        "--insecure", help="Send the key to other machines unencrypted; SFUMATO_INSECURE=1."
    ),
]


def connection_of(
    *, address: str | None, api_key_file: Path | None, tls: Tls | None, insecure: bool
) -> Connection:
    """The connection of the environment, with what options say in place of it.

    Raises:
        BadParameter: One of them cannot be used.
    """
    environment = dict(os.environ)
    try:
        if api_key_file is not None:
            # The option wins, whichever way the environment names a key.
            environment.pop(API_KEY_VARIABLE, None)
            environment.pop(API_KEY_FILE_VARIABLE, None)
        connection = Connection.from_environment(environment)
        if api_key_file is not None:
            connection = replace(connection, api_key=read_api_key(api_key_file))
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    if address is not None:
        connection = replace(connection, addresses=addresses_at(address))
    return replace(connection, tls=tls or connection.tls, insecure=insecure or connection.insecure)


def tls_of(
    *, tls: bool, ca_file: Path | None, certificate_file: Path | None, key_file: Path | None
) -> Tls | None:
    """What the options say of encryption; None when they say nothing. Raises BadParameter."""
    if not (tls or ca_file or certificate_file or key_file):
        return None
    try:
        return Tls(ca_file=ca_file, certificate_file=certificate_file, key_file=key_file)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--tls-certificate") from error


def addresses_at(address: str) -> Addresses:
    """What `--address` names."""
    try:
        if not address:
            raise ValueError("must be host:port")
        return Addresses.all_at(address)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--address") from error
