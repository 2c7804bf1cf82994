"""Configuration of a process: one TOML file, overridden by ``SFUMATO_<SECTION>_<FIELD>``.

Each section is a frozen dataclass that stands beside what it configures. An unknown section or field is
an error, in the file and in the environment. ``sfumato config show`` prints every value with its origin.
"""

import dataclasses
import json
import math
import re
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

PREFIX = "SFUMATO_"
DEFAULT_FILE = "sfumato.toml"
MAX_PORT = 65_535
MAX_RETENTION_HOURS = 876_000.0
"""A hundred years: more would lead past the last date that there is."""

Section = TypeVar("Section")
Number = TypeVar("Number", int, float)


def at_least(minimum: float, default: Number, *, at_most: float = math.inf) -> Number:
    """A field of a section with a smallest and a largest value, which ``load_config`` checks."""
    bounded: Number = dataclasses.field(
        default=default, metadata={"minimum": minimum, "maximum": at_most}
    )
    return bounded


def written_as(pattern: str, default: str, *, forms: str) -> str:
    """A field of a section whose text fits ``pattern``, which ``load_config`` checks; ``forms`` says so."""
    fitting: str = dataclasses.field(default=default, metadata={"pattern": pattern, "forms": forms})
    return fitting


def one_of(*words: str, default: str) -> str:
    """A field of a section that is one of ``words``."""
    forms = f"{', '.join(words[:-1])} or {words[-1]}"
    return written_as("|".join(map(re.escape, words)), default, forms=forms)


def device_field() -> str:
    """A field of a section that names the device of a service."""
    return written_as(r"cpu|cuda:(0|[1-9][0-9]{0,3})", "cpu", forms="cpu or cuda:<n>")


class StartError(Exception):
    """A process of services cannot start; the message is one line for whoever started it."""


class ConfigError(StartError):
    """The configuration cannot be used; the message names the setting and where it was set."""


class StorageError(StartError):
    """The configuration is right, but what it names cannot be read or written now."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerConfig:
    """[server]: how a process is reached.

    Attributes:
        host: Address to listen on. Anything but loopback is refused without TLS and an API key.
        port: TCP port; 0 takes a free one.
        heartbeat_seconds: Longest silence of a watch.
        watch_max_age_seconds: A watch is asked to attach anew after this long.
        unary_deadline_seconds: Longest time that an ordinary call may take.
        drain_seconds: Longest time between SIGTERM and exit.
        require_keys: Whether a call on loopback needs an API key too. Beyond it every call does.
        tls_certificate: PEM file of the certificate and those that lead to its authority; empty for none.
        tls_key: PEM file of its private key, not encrypted.
        tls_client_ca: PEM file of the authorities whose client certificates are asked for; empty for none.
            Keys are required then too: a certificate names no principal.
        insecure_remote: Whether to serve beyond loopback, and call other services there, without TLS, and
            without keys unless ``require_keys``.
        reflection: Whether grpcurl can ask for the methods, without a key; on loopback alone.
        remote_reflection: Whether it can beyond loopback too.
        metrics_port: Loopback port of the metrics in the format of Prometheus; 0 opens none.
    """

    host: str = "127.0.0.1"
    port: int = at_least(0, 7433, at_most=MAX_PORT)
    heartbeat_seconds: float = at_least(0.01, 10.0)
    watch_max_age_seconds: float = at_least(0.01, 1800.0)
    unary_deadline_seconds: float = at_least(0.01, 60.0)
    drain_seconds: float = at_least(0.1, 25.0)
    require_keys: bool = False
    tls_certificate: str = ""
    tls_key: str = ""
    tls_client_ca: str = ""
    insecure_remote: bool = False
    reflection: bool = True
    remote_reflection: bool = False
    metrics_port: int = at_least(0, 0, at_most=MAX_PORT)


@dataclass(frozen=True, kw_only=True, slots=True)
class StorageConfig:
    """[storage]: where everything lies.

    Attributes:
        data_dir: Folder of the database, the blobs, the runs and the logs of workers.
        database_url: A SQLite URL; empty for ``<data_dir>/sfumato.sqlite3``.
    """

    data_dir: Path = Path("sfumato-data")
    database_url: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class LogConfig:
    """[log]: what is logged, to standard error.

    Attributes:
        level: ``debug``, ``info``, ``warning`` or ``error``.
        json: One JSON object a line; otherwise lines for people.
    """

    level: str = one_of("debug", "info", "warning", "error", default="info")
    json: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class AddressesConfig:
    """[addresses]: where the other services are, and how they are called.

    Attributes:
        datasets: ``host:port``; empty: in this process. So are the two below.
        api_key_file: File with the API key of this service, read at each call; empty for none. The key has
            the scope ``impersonate``.
        tls: Whether the calls are encrypted; so they are with ``ca_file`` too.
        ca_file: PEM file of the authorities of the others' certificates; empty for the public ones.
        certificate_file: PEM file of this service's own certificate, for services that ask for one.
        key_file: PEM file of its private key.
    """

    datasets: str = ""
    trainer: str = ""
    generator: str = ""
    api_key_file: str = ""
    tls: bool = False
    ca_file: str = ""
    certificate_file: str = ""
    key_file: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkersConfig:
    """[workers]: the processes that hold torch.

    Attributes:
        lease_seconds: How long a worker goes on without an answer from its service.
        rest_seconds: How long it may take after that to come to rest; then it ends itself.
        threads: OpenMP threads of each; 0 leaves it to the library.
    """

    lease_seconds: float = at_least(0.1, 60.0)
    rest_seconds: float = at_least(0.1, 20.0)
    threads: int = at_least(0, 0)


OTHER_VARIABLES = frozenset(
    f"{PREFIX}{name}"
    for name in (
        *("ADDRESS", "API_KEY", "DATASETS_ADDRESS", "TRAINER_ADDRESS", "GENERATOR_ADDRESS"),
        *("API_KEY_FILE", "TLS", "TLS_CA", "TLS_CERTIFICATE", "TLS_KEY", "INSECURE"),
        "FAILPOINTS",
    )
)
"""Read by the client libraries and by tests; they are no settings."""

CHASSIS_SECTIONS: Mapping[str, type] = {
    "server": ServerConfig,
    "storage": StorageConfig,
    "log": LogConfig,
    "addresses": AddressesConfig,
    "workers": WorkersConfig,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """One value in force and where it came from."""

    section: str
    field: str
    value: Any
    origin: str


def json_value(value: Any) -> Any:
    """A setting as JSON has it."""
    if isinstance(value, tuple):
        return [json_value(part) for part in value]
    return str(value) if isinstance(value, Path) else value


def toml_value(value: Any) -> str:
    """A setting as it is written in the file; TOML has values of these kinds as JSON has them."""
    return json.dumps(json_value(value), ensure_ascii=False)


class Config:
    """All sections of a process."""

    def __init__(self, sections: Mapping[type, Any], settings: list[Setting]) -> None:
        self._sections = sections
        self.settings = settings

    def section(self, kind: type[Section]) -> Section:
        """The section of this type."""
        section: Section = self._sections[kind]
        return section


def load_config(
    sections: Mapping[str, type],
    *,
    file: Path | None,
    environment: Mapping[str, str],
    overrides: Mapping[str, Any] = types.MappingProxyType({}),
) -> Config:
    """Reads the configuration.

    Args:
        sections: Name and dataclass of every section.
        file: A TOML file; None takes ``sfumato.toml`` of the working folder if it is there.
        environment: Usually ``os.environ``.
        overrides: ``section.field`` to value, from the command line. They win over the environment,
            which wins over the file, which wins over the defaults.

    Raises:
        ConfigError: An unknown section or field, or a value of the wrong type.
    """
    if file is None and Path(DEFAULT_FILE).is_file():
        file = Path(DEFAULT_FILE)
    tables = read_tables(file, sections) if file is not None else {}
    check_environment(environment, sections)
    loaded: dict[type, Any] = {}
    settings: list[Setting] = []
    for name, kind in sections.items():
        values = {}
        hints = typing.get_type_hints(kind)
        for field in dataclasses.fields(kind):
            variable = f"{PREFIX}{name}_{field.name}".upper()
            value, origin = field.default, "default"
            if field.name in tables.get(name, {}):
                value, origin = tables[name][field.name], str(file)
            if variable in environment:
                value, origin = environment[variable], f"environment {variable}"
            if f"{name}.{field.name}" in overrides:
                value, origin = overrides[f"{name}.{field.name}"], "command line"
            if origin != "default":
                where = f"{name}.{field.name} ({origin})"
                value = convert(value, hints[field.name], where)
                check_bounds(value, field, where)
            values[field.name] = value
            settings.append(Setting(section=name, field=field.name, value=value, origin=origin))
        loaded[kind] = kind(**values)
    return Config(loaded, settings)


def read_tables(file: Path, sections: Mapping[str, type]) -> Mapping[str, Mapping[str, Any]]:
    """The tables of a TOML file; unknown ones are an error."""
    import tomllib  # most processes have no file

    try:
        tables = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror}") from error
    except (UnicodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{file}: {error}") from error
    for name, table in tables.items():
        if name not in sections:
            raise ConfigError(f"{file}: unknown section [{name}]; known: {', '.join(sections)}")
        known = {field.name for field in dataclasses.fields(sections[name])}
        if not isinstance(table, dict):
            raise ConfigError(f"{file}: {name} must be a section")
        for field in table:
            if field not in known:
                raise ConfigError(f"{file}: unknown setting {name}.{field}")
    return tables


def check_environment(environment: Mapping[str, str], sections: Mapping[str, type]) -> None:
    """Refuses a variable that begins with SFUMATO_ but names no setting."""
    known = {
        f"{PREFIX}{name}_{field.name}".upper()
        for name, kind in sections.items()
        for field in dataclasses.fields(kind)
    }
    for variable in environment:
        if variable.startswith(PREFIX) and variable not in known | OTHER_VARIABLES:
            raise ConfigError(f"environment {variable}: no such setting")


def check_bounds(value: Any, field: dataclasses.Field[Any], where: str) -> None:
    """Refuses a value that :func:`at_least` or :func:`written_as` of its field does not allow."""
    allowed = field.metadata
    if "minimum" in allowed and value < allowed["minimum"]:
        raise ConfigError(f"{where}: must be at least {allowed['minimum']:.16g}")
    if "maximum" in allowed and value > allowed["maximum"]:
        raise ConfigError(f"{where}: must be at most {allowed['maximum']:.16g}")
    if "pattern" in allowed and re.fullmatch(allowed["pattern"], value) is None:
        raise ConfigError(f"{where}: must be {allowed['forms']}, not {value!r}")


def convert(value: Any, hint: Any, where: str) -> Any:
    """``value`` as the type ``hint``: from TOML, from text, or as it is."""
    origin = typing.get_origin(hint)
    if origin is tuple:
        item = typing.get_args(hint)[0]
        parts = [part for part in value.split(",") if part] if isinstance(value, str) else value
        if not isinstance(parts, list | tuple):
            raise ConfigError(f"{where}: must be a list")
        return tuple(convert(part, item, where) for part in parts)
    if hint is bool and isinstance(value, str) and value.lower() in {"true", "false"}:
        return value.lower() == "true"
    if hint is Path and isinstance(value, str | Path):
        return Path(value)
    if hint in {int, float} and not isinstance(value, bool):
        return convert_number(value, hint, where)
    if hint is not bool and isinstance(value, bool):
        raise ConfigError(f"{where}: must be {hint.__name__}, not bool")
    if not isinstance(value, hint):
        raise ConfigError(f"{where}: must be {hint.__name__}, not {type(value).__name__}")
    return value


def convert_number(value: Any, hint: type[int] | type[float], where: str) -> int | float:
    """``value`` as a finite number; a fraction never becomes an integer."""
    if not isinstance(value, int | float | str) or (hint is int and isinstance(value, float)):
        raise ConfigError(f"{where}: must be {hint.__name__}, not {type(value).__name__}")
    try:
        number = hint(value)
    except (ValueError, OverflowError) as error:
        raise ConfigError(f"{where}: not a number: {value!r}") from error
    if not math.isfinite(number):
        raise ConfigError(f"{where}: not a finite number: {value!r}")
    return number
