"""FLUX.1: encodes, predicts and generates as `diffusers.FluxPipeline` does."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from sfumato_diffusion.families.contract import (
    Family,
    PromptEmbedding,
    TextToImage,
    UnsupportedRequestError,
)
from sfumato_diffusion.families.flux_1.info import INFO

TRAINING_GUIDANCE = 1.0


class Flux1Family(Family):
    """The denoiser takes sigma and 2 x 2 patches of latents, and answers the velocity."""

    info = INFO

    @torch.no_grad()
    def encode_prompt(self, text_encoders: Any, caption: str) -> PromptEmbedding:
        """T5 states (512, features) and CLIP's pooled state (features,)."""
        states, pooled, _ = text_encoders.encode_prompt(
            prompt=caption, max_sequence_length=self.info.prompt_length
        )
        return states[0].cpu(), pooled[0].cpu()

    def predict(
        self,
        denoiser: Any,
        x_t: torch.Tensor,
        sigma: torch.Tensor,
        conditioning: Sequence[PromptEmbedding],
    ) -> torch.Tensor:
        parameter = next(denoiser.parameters())
        place: dict[str, Any] = {"device": parameter.device, "dtype": parameter.dtype}
        height, width = x_t.shape[-2:]
        states = _stack([embedding[0] for embedding in conditioning]).to(**place)
        guidance = None
        if denoiser.config.guidance_embeds:
            guidance = torch.full_like(sigma, TRAINING_GUIDANCE, dtype=torch.float32)
        output: torch.Tensor = denoiser(
            hidden_states=pack_latents(x_t.to(parameter.dtype)),
            timestep=sigma,
            guidance=guidance,
            pooled_projections=_stack([embedding[1] for embedding in conditioning]).to(**place),
            encoder_hidden_states=states,
            txt_ids=torch.zeros(states.shape[1], 3, **place),
            img_ids=patch_positions(height // 2, width // 2).to(**place),
            return_dict=False,
        )[0]
        return unpack_latents(output, height, width)

    def check_request(self, pipeline: Any, request: TextToImage) -> None:
        super().check_request(pipeline, request)
        if request.negative_prompt is not None:
            raise UnsupportedRequestError("negative_prompt", "acts only with true_cfg_scale")
        distilled_guidance = pipeline.transformer.config.guidance_embeds
        if request.guidance not in (None, 0.0) and not distilled_guidance:
            raise UnsupportedRequestError("guidance", "this base model ignores it")


def pack_latents(latents: torch.Tensor) -> torch.Tensor:
    """(batch, c, h, w) to (batch, h/2 * w/2, 4c): one row per 2 x 2 patch, channels first."""
    return nn.functional.pixel_unshuffle(latents, 2).flatten(2).transpose(1, 2)


def unpack_latents(patches: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """The inverse of `pack_latents`."""
    batch, _, channels = patches.shape
    grid = patches.transpose(1, 2).reshape(batch, channels, height // 2, width // 2)
    return nn.functional.pixel_shuffle(grid, 2)


def patch_positions(rows: int, columns: int) -> torch.Tensor:
    """(rows * columns, 3): zero, row, column of each patch."""
    positions = torch.zeros(rows, columns, 3)
    positions[..., 1] = torch.arange(rows)[:, None]
    positions[..., 2] = torch.arange(columns)[None, :]
    return positions.flatten(0, 1)


def _stack(tensors: Sequence[torch.Tensor | None]) -> torch.Tensor:
    return torch.stack([tensor for tensor in tensors if tensor is not None])


FAMILY = Flux1Family()
