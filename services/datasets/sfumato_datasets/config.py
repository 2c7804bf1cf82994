"""[datasets]: the datasets service's section of the configuration."""

from dataclasses import dataclass
from pathlib import Path

from sfumato_chassis.config import MAX_RETENTION_HOURS, at_least


@dataclass(frozen=True, kw_only=True, slots=True)
class DatasetsConfig:
    """[datasets].

    Attributes:
        import_roots: Folders on the server under which imports may read.
        max_concurrent_imports: Imports at work at once; others wait.
        max_queued_imports: More are refused with QUEUE_FULL.
        import_retention_hours: How long an import's record is kept after its end.
        image_memory_limit_bytes: Address space of each process that decodes images.
        num_verifiers: Processes that decode images, for each import; 0 for as many as there are
            processors, but at most 4.
        allow_download: Whether datasets of the Hub are fetched; otherwise only its cache is read.
        hub_endpoint: Address of the Hub or a mirror of it; empty for HF_ENDPOINT, or huggingface.co.
        hub_hosts: Hosts that the Hub may lead to, over https; `*.` in front stands for every name below.
        hub_max_bytes: Most bytes that one import fetches from the Hub, and that its images in Parquet take.
        hub_timeout_seconds: Longest time that one attempt of an import fetches.
    """

    import_roots: tuple[Path, ...] = ()
    max_concurrent_imports: int = at_least(0, 2)
    max_queued_imports: int = at_least(0, 100)
    import_retention_hours: float = at_least(0, 24.0, at_most=MAX_RETENTION_HOURS)
    image_memory_limit_bytes: int = at_least(1 << 28, 3 << 30)
    num_verifiers: int = at_least(0, 0, at_most=64)
    allow_download: bool = True
    hub_endpoint: str = ""
    hub_hosts: tuple[str, ...] = ("huggingface.co", "*.huggingface.co", "*.hf.co")
    hub_max_bytes: int = at_least(1, 20 << 30)
    hub_timeout_seconds: float = at_least(1, 14_400.0)


SECTION = DatasetsConfig
