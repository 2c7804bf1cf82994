"""What a base model's folder says of a run's settings."""

from pathlib import Path

from sfumato_diffusion.families.info import FamilyInfo
from sfumato_diffusion.model_folder import unmatched_targets
from sfumato_trainer.settings import SettingsError, TrainingSettings


def check_fit(
    settings: TrainingSettings, info: FamilyInfo, folder: Path | None, *, longest_side: int
) -> None:
    """Refuses settings that the model cannot honour. Only the denoiser is looked at.

    Args:
        settings: Resolved.
        info: The model's family.
        folder: Where the model lies; None for one that is still to be fetched.
        longest_side: In pixels, for which the model has positions.

    Raises:
        SettingsError: It has no positions for the resolution, or no layer of a target's name.
        ModelFolderError: The denoiser cannot be loaded.
    """
    if settings.resolution > longest_side:
        raise SettingsError("resolution", f"must be at most {longest_side} for this model")
    if folder is None:
        return
    unmatched = unmatched_targets(folder, info, settings.target_modules)
    if unmatched:
        raise SettingsError(
            "target_modules",
            f"{', '.join(unmatched)}: no linear layer of the model has this name",
        )
