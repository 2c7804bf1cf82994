"""From the name of a base model to a local directory in the diffusers layout. No torch."""

from collections.abc import Sequence
from pathlib import Path

from sfumato_diffusion.source_revision import find_snapshot

_WANTED = ("*.json", "*.jinja", "*.model", "*.txt", "*.safetensors")
_UNWANTED = ("*.fp16.safetensors", "flux1-*.safetensors")


class ModelNotFoundError(LookupError):
    """The weights are not on this machine, or the repository refuses them."""


def locate_model(
    reference: str,
    cache_roots: Sequence[Path],
    *,
    revision: str = "main",
    allow_download: bool = False,
) -> Path:
    """Directory of the model; downloads into the first root only where that is allowed.

    Raises ModelNotFoundError, which names the repository when it is behind a licence gate.
    """
    path = Path(reference)
    if (path / "model_index.json").is_file():
        return path
    snapshot = find_snapshot(reference, cache_roots, revision=revision)
    if snapshot is not None and (snapshot / "model_index.json").is_file():
        return snapshot
    if not allow_download or not cache_roots:
        raise ModelNotFoundError(f"{reference} (revision {revision}) is not on this machine")
    return _download(reference, revision, cache_roots[0])


def _download(repository: str, revision: str, cache_root: Path) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RepositoryNotFoundError

    try:
        return Path(
            snapshot_download(
                repository,
                revision=revision,
                cache_dir=cache_root,
                allow_patterns=list(_WANTED),
                ignore_patterns=list(_UNWANTED),
            )
        )
    except GatedRepoError as error:
        message = f"{repository} is behind a licence gate: accept its terms on the Hub first"
        raise ModelNotFoundError(message) from error
    except (RepositoryNotFoundError, HfHubHTTPError, OSError) as error:
        raise ModelNotFoundError(f"{repository} could not be downloaded") from error
