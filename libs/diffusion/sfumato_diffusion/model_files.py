"""From the name of a base model to a local directory in the diffusers layout. No torch."""

from collections.abc import Sequence
from pathlib import Path

from sfumato_diffusion.families.info import FamilyInfo
from sfumato_diffusion.model_folder import INDEX, MissingPartError, check_model_folder
from sfumato_diffusion.source_revision import find_snapshot

_WANTED = ("*.json", "*.jinja", "*.model", "*.txt", "*.safetensors")
_UNWANTED = ("*.fp16.safetensors", "flux1-*.safetensors")


class ModelNotFoundError(LookupError):
    """The weights are not on this machine, or the repository refuses them."""


def locate_model(
    reference: str,
    cache_roots: Sequence[Path],
    *,
    info: FamilyInfo,
    revision: str = "main",
    allow_download: bool = False,
) -> Path:
    """Directory of the model; downloads into the first root only where that is allowed.

    A download that was interrupted leaves a snapshot in which components are missing: it is continued.
    Raises ModelNotFoundError, which names the repository when it is behind a licence gate, and
    ModelFolderError where what is here is damaged or of another kind: a download would not mend it.
    """
    path = Path(reference)
    if (path / INDEX).is_file():
        return path
    snapshot = find_snapshot(reference, cache_roots, revision=revision)
    may_download = allow_download and bool(cache_roots)
    if snapshot is not None and (snapshot / INDEX).is_file():
        if not may_download or is_complete(snapshot, info):
            return snapshot
    elif not may_download:
        raise ModelNotFoundError(f"{reference} (revision {revision}) is not on this machine")
    return _download(reference, revision, cache_roots[0])


def is_complete(directory: Path, info: FamilyInfo) -> bool:
    """Whether nothing that a model of the family needs is missing. Raises ModelFolderError."""
    try:
        check_model_folder(directory, info)
    except MissingPartError:
        return False
    return True


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
