"""Models that stay on the device between generations, and the adapters on them."""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from sfumato_diffusion.adapters import Adapter, AdapterStack, load_adapter
from sfumato_diffusion.families.contract import TORCH_DTYPES, Family
from sfumato_diffusion.families.info import Precision
from sfumato_diffusion.families.registry import load_family
from sfumato_diffusion.model_folder import check_model_folder
from sfumato_diffusion.source_revision import WHOLE_MODEL, source_revision
from sfumato_generator.plan import AdapterFile, GenerationPlan

OnLoading = Callable[[str], None]
"""Called with ``pipeline`` or an adapter's name before it is loaded."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelKey:
    """What tells two resident models apart."""

    family: str
    directory: str
    revision: str
    precision: Precision


@dataclass(kw_only=True)
class ResidentModel:
    """A pipeline on the device.

    Attributes:
        key: Its weights and their precision.
        family: Knows how to generate with it.
        adapters: The adapters on it, by digest.
    """

    key: ModelKey
    family: Family
    pipeline: Any
    stack: AdapterStack
    adapters: dict[str, Adapter] = field(default_factory=dict)

    @property
    def scheduler(self) -> str:
        """Class of its scheduler."""
        return type(self.pipeline.scheduler).__name__

    def switch_adapters(
        self,
        files: Sequence[AdapterFile],
        path_of: Callable[[str], Path],
        on_loading: OnLoading,
    ) -> None:
        """Makes exactly these adapters act; the base weights are not touched.

        Args:
            files: Whose digests were verified.
            path_of: Where a blob lies.
            on_loading: Told each adapter that was not on the model before.

        Raises:
            AdapterError: A file cannot be used, or does not fit the model.
            OSError: A file cannot be read.
        """
        wanted: dict[str, Adapter] = {}
        for file in files:
            if file.digest not in self.adapters:
                on_loading(file.name)
            wanted[file.digest] = self.adapters.get(file.digest) or load_adapter(
                path_of(file.digest)
            )
        weights = {file.digest: file.weight for file in files}
        self.stack.switch(
            {stack_name(digest): (adapter, weights[digest]) for digest, adapter in wanted.items()}
        )
        self.adapters = wanted

    def components(self, requested: str) -> list[Mapping[str, str]]:
        """Fields of ``ComponentStatus`` for each part that holds weights."""
        names = {dtype: str(name) for name, dtype in TORCH_DTYPES.items()}
        automatic = f"auto takes this on {self.pipeline.device.type}" if requested == "auto" else ""
        return [
            {
                "component": name,
                "requested": requested,
                "engaged": names[next(module.parameters()).dtype],
                "reason": automatic,
            }
            for name, module in self.pipeline.components.items()
            if isinstance(module, nn.Module)
        ]


class ResidentModels:
    """At most so many models; the least recently used leaves first."""

    def __init__(self, *, device: str, max_models: int) -> None:
        self._device = device
        self._max_models = max_models
        self._models: OrderedDict[ModelKey, ResidentModel] = OrderedDict()

    def take(self, plan: GenerationPlan, on_loading: OnLoading) -> tuple[ResidentModel, bool]:
        """The plan's model, loaded if its weights as they are now are not on the device.

        Returns:
            The model, and whether it was resident.

        Raises:
            ModelFolderError: The folder has changed, or is gone, since the plan was made.
            UnreadableModelError: The model's libraries cannot load it.
        """
        directory = Path(plan.model_directory)
        key = ModelKey(
            family=plan.configuration.family,
            directory=plan.model_directory,
            revision=plan.model_marker
            or source_revision(plan.model_directory, (), components=WHOLE_MODEL),
            precision=plan.precision,
        )
        if key in self._models:
            self._models.move_to_end(key)
            return self._models[key], True
        self._make_room()
        on_loading("pipeline")
        family = load_family(key.family)
        check_model_folder(directory, family.info)
        pipeline = family.load_pipeline(directory, precision=key.precision).to(self._device)
        denoiser = getattr(pipeline, family.info.denoiser_component)
        model = ResidentModel(
            key=key, family=family, pipeline=pipeline, stack=AdapterStack(denoiser)
        )
        self._models[key] = model
        return model, False

    def drop(self, model: ResidentModel) -> None:
        """Forgets one model, whose adapters may be half switched."""
        self._models.pop(model.key, None)

    def clear(self) -> None:
        """Frees everything."""
        self._models.clear()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def _make_room(self) -> None:
        while len(self._models) >= self._max_models:
            self._models.popitem(last=False)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def stack_name(digest: str) -> str:
    """A name for an adapter on a model: letters and digits only."""
    return f"a{digest.removeprefix('sha256:')[:32]}"
