"""What every model family implements. Nothing outside a family's folder knows its pipeline.

Conventions: x are clean latents, e is noise, sigma in [0, 1] is the share of noise, and
x_t = (1 - sigma) x + sigma e. The velocity is e - x (flow matching, arXiv:2210.02747), whatever
sign and time the family's denoiser itself uses.
"""

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, cast

import diffusers
import numpy as np
import torch
import transformers
from PIL import Image
from torch import nn

from sfumato_diffusion.families.info import FamilyInfo, Precision
from sfumato_diffusion.families.loaded_parts import (
    check_settings,
    check_tensors,
    check_tokenizer,
    is_prompt_in_chat,
)
from sfumato_diffusion.model_folder import (
    ModelFolderError,
    check_components,
    component_class,
    components_of,
    expected_class,
    read_settings,
    tokenizer_of,
    with_weights,
)

PromptEmbedding = tuple[torch.Tensor | None, ...]

TORCH_DTYPES: dict[Precision, torch.dtype] = {
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}


class GenerationCancelledError(Exception):
    """The caller asked for the generation to end between two denoising steps."""


class UnreadableModelError(Exception):
    """The libraries cannot load a component in which nothing wrong is to be seen beforehand.

    The message names it, `__cause__` is the library's error.
    """


class UnsupportedRequestError(ValueError):
    """The family cannot honour a field of the request. `field` names it."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field


@dataclass(frozen=True, kw_only=True, slots=True)
class LatentStatistics:
    """Posterior of one picture after the family's normalisation, fp32, (channels, height, width).

    `std` is None for families that train on the posterior's mode.
    """

    mean: torch.Tensor
    std: torch.Tensor | None


@dataclass(frozen=True, kw_only=True, slots=True)
class TextToImage:
    """One picture to make. `guidance` None is the pipeline's own default."""

    prompt: str
    width: int
    height: int
    steps: int
    seed: int
    guidance: float | None = None
    negative_prompt: str | None = None


OnStep = Callable[[int, int], None]
"""Called with (steps done, steps in all) after every denoising step."""


def ignore_step(_done: int, _total: int) -> None:
    """For callers who do not follow the progress."""


def never_cancelled() -> bool:
    """For callers who do not cancel."""
    return False


class Family(ABC):
    """One model family; stateless, so one instance serves everyone.

    A `source` is always a local directory in the diffusers layout, so that loading never
    downloads.
    """

    info: ClassVar[FamilyInfo]

    def load_pipeline(self, source: Path, *, precision: Precision) -> Any:
        """The whole pipeline, in eval mode.

        Every loader raises UnsupportedPrecisionError, UnsafeWeightsError, ModelFolderError and
        UnreadableModelError.
        """
        return self._pipeline(source, precision, omit=())

    def load_text_encoders(self, source: Path, *, precision: Precision) -> Any:
        """A pipeline that holds tokenizers and text encoders only."""
        return self._pipeline(source, precision, omit=("vae", self.info.denoiser_component))

    def load_vae(self, source: Path, *, precision: Precision) -> Any:
        """The VAE alone, in eval mode and frozen."""
        self.info.check_precision(precision)
        check_components(source, self.info, ["vae"])
        return self._load_module(source, "vae", precision).requires_grad_(False)

    def load_denoiser(self, source: Path, *, precision: Precision) -> nn.Module:
        """The denoiser alone, in eval mode and frozen."""
        self.info.check_precision(precision)
        component = self.info.denoiser_component
        check_components(source, self.info, [component])
        return self._load_module(source, component, precision).requires_grad_(False)

    def enable_gradient_checkpointing(self, denoiser: Any) -> None:
        """Recompute activations in the backward pass; gradients stay the same."""
        denoiser.enable_gradient_checkpointing()

    def load_scheduler(self, source: Path) -> Any:
        """The scheduler whose table training draws from."""
        check_components(source, self.info, ["scheduler"])
        kind = getattr(diffusers, self.info.scheduler_class)
        check_settings("scheduler", read_settings(source, "scheduler"), kind)
        with _reading("scheduler"):
            return kind.from_pretrained(source, subfolder="scheduler")

    @torch.no_grad()
    def encode_image(self, vae: Any, image: Image.Image) -> LatentStatistics:
        """Posterior of one RGB picture whose sides are multiples of `info.size_divisor`."""
        parameter = next(vae.parameters())
        pixels = image_to_tensor(image).to(parameter.device, parameter.dtype)
        posterior = vae.encode(pixels[None]).latent_dist
        mean = self.normalise_latents(vae, posterior.mean.float())[0].cpu()
        if self.info.latents == "posterior_mode":
            return LatentStatistics(mean=mean, std=None)
        std = posterior.std.float() * float(vae.config.scaling_factor)
        return LatentStatistics(mean=mean, std=std[0].cpu())

    def normalise_latents(self, vae: Any, latents: torch.Tensor) -> torch.Tensor:
        """Latents as the denoiser sees them, from the VAE's own: shift, then scale."""
        shift = vae.config.shift_factor or 0.0
        return (latents - shift) * float(vae.config.scaling_factor)

    @torch.no_grad()
    def decode(self, pipeline: Any, latents: torch.Tensor) -> list[Image.Image]:
        """Pictures of normalised latents (batch, channels, height, width)."""
        vae = pipeline.vae
        scaled = latents / float(vae.config.scaling_factor) + (vae.config.shift_factor or 0.0)
        pixels = vae.decode(scaled.to(vae.device, vae.dtype), return_dict=False)[0]
        return cast(list[Image.Image], pipeline.image_processor.postprocess(pixels))

    def generate(
        self,
        pipeline: Any,
        request: TextToImage,
        *,
        on_step: OnStep = ignore_step,
        cancelled: Callable[[], bool] = never_cancelled,
    ) -> Image.Image:
        """One picture, equal bit for bit to the bare pipeline call with the same seed.

        Raises GenerationCancelledError within one denoising step of `cancelled` turning true,
        and UnsupportedRequestError for a field that the model would ignore.
        """
        self.check_request(pipeline, request)

        def on_step_end(_: Any, step: int, __: Any, tensors: dict[str, Any]) -> dict[str, Any]:
            if cancelled():
                raise GenerationCancelledError
            on_step(step + 1, request.steps)
            return tensors

        output = pipeline(
            prompt=request.prompt,
            width=request.width,
            height=request.height,
            num_inference_steps=request.steps,
            generator=torch.Generator("cpu").manual_seed(request.seed),
            callback_on_step_end=on_step_end,
            **self.guidance_arguments(request),
        )
        return cast(Image.Image, output.images[0])

    def check_request(self, pipeline: Any, request: TextToImage) -> None:  # noqa: ARG002 - families look at the pipeline
        """Raises UnsupportedRequestError."""
        for field, side in (("width", request.width), ("height", request.height)):
            if side % self.info.size_divisor:
                raise UnsupportedRequestError(
                    field, f"must be a multiple of {self.info.size_divisor}"
                )

    def guidance_arguments(self, request: TextToImage) -> dict[str, Any]:
        """The pipeline's keyword arguments for guidance and negative prompt."""
        arguments: dict[str, Any] = {}
        if request.guidance is not None:
            arguments[self.info.default_base.guidance.keyword] = request.guidance
        if request.negative_prompt is not None:
            arguments["negative_prompt"] = request.negative_prompt
        return arguments

    @abstractmethod
    def encode_prompt(self, text_encoders: Any, caption: str) -> PromptEmbedding:
        """Embeddings of one caption, without a batch dimension, on the CPU."""

    @abstractmethod
    def predict(
        self,
        denoiser: Any,
        x_t: torch.Tensor,
        sigma: torch.Tensor,
        conditioning: Sequence[PromptEmbedding],
    ) -> torch.Tensor:
        """Velocity e - x for training.

        `x_t` (batch, channels, height, width), `sigma` (batch,) in fp32, one prompt embedding
        per item. Returns x_t's shape in the denoiser's dtype.
        """

    def _pipeline(self, source: Path, precision: Precision, omit: Sequence[str]) -> Any:
        self.info.check_precision(precision)
        components = [name for name in components_of(self.info) if name not in omit]
        check_components(source, self.info, components)
        parts: dict[str, Any] = {
            name: self._load_module(source, name, precision)
            for name in with_weights(self.info)
            if name not in omit
        }
        parts["scheduler"] = self.load_scheduler(source)
        with _reading(*(name for name in components if name not in parts)):
            pipeline = getattr(diffusers, self.info.pipeline_class).from_pretrained(
                source, dtype=TORCH_DTYPES[precision], **parts, **dict.fromkeys(omit)
            )
        for name in self.info.text_encoder_components:
            self._check_tokenizer(pipeline, name)
        pipeline.set_progress_bar_config(disable=True)
        for part in pipeline.components.values():
            if isinstance(part, nn.Module):
                part.requires_grad_(False)
        return pipeline

    def _load_module(self, source: Path, component: str, precision: Precision) -> nn.Module:
        """One component that has weights, in eval mode; its files have been checked."""
        kind = self._class_of(source, component)
        with _reading(component):
            module, report = kind.from_pretrained(
                source,
                subfolder=component,
                dtype=TORCH_DTYPES[precision],
                use_safetensors=True,
                output_loading_info=True,
            )
        check_tensors(
            component,
            report["missing_keys"],
            report["unexpected_keys"],
            is_encoder=component in self.info.text_encoder_components,
        )
        return cast(nn.Module, module)

    def _class_of(self, source: Path, component: str) -> Any:
        expected = expected_class(component, self.info)
        if expected is not None:
            kind = getattr(diffusers, expected)
            check_settings(component, read_settings(source, component), kind)
            return kind
        name = component_class(source, component)
        kind = getattr(transformers, name, None)
        if not (isinstance(kind, type) and issubclass(kind, transformers.PreTrainedModel)):
            raise ModelFolderError(component, f"transformers has no model {name}")
        return kind

    def _check_tokenizer(self, pipeline: Any, encoder: str) -> None:
        """Raises ModelFolderError and UnreadableModelError."""
        component = tokenizer_of(encoder)
        tokenizer = getattr(pipeline, component)
        embeddings = getattr(pipeline, encoder).get_input_embeddings()
        check_tokenizer(component, tokenizer, embeddings.num_embeddings)
        if self.info.chat_template:
            with _reading(component):
                is_whole = is_prompt_in_chat(tokenizer)
            if not is_whole:
                raise ModelFolderError(component, "its chat template leaves the prompt out")


@contextlib.contextmanager
def _reading(*components: str) -> Iterator[None]:
    """The many errors of the library that reads these become one, which is chained to them."""
    try:
        yield
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        # For a damaged configuration the libraries raise whatever its values lead to.
        raise UnreadableModelError(f"{', '.join(components)} cannot be read") from error


def image_to_tensor(image: Image.Image) -> torch.Tensor:
    """RGB picture to (3, height, width) in [-1, 1], fp32."""
    pixels = np.array(image.convert("RGB"), dtype=np.float32)
    return torch.from_numpy(pixels / 127.5 - 1.0).permute(2, 0, 1).contiguous()
