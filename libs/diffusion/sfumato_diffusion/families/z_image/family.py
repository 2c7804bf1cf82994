"""Z-Image: encodes, predicts and generates as `diffusers.ZImagePipeline` does."""

from collections.abc import Sequence
from typing import Any

import torch

from sfumato_diffusion.families.contract import (
    Family,
    PromptEmbedding,
    TextToImage,
    UnsupportedRequestError,
)
from sfumato_diffusion.families.z_image.info import INFO


class ZImageFamily(Family):
    """The denoiser takes 1 - sigma and answers x - e, the negative of the velocity."""

    info = INFO

    @torch.no_grad()
    def encode_prompt(self, text_encoders: Any, caption: str) -> PromptEmbedding:
        """(tokens, features) of the caption's own tokens; padding is left out."""
        embeddings, _ = text_encoders.encode_prompt(
            prompt=caption,
            do_classifier_free_guidance=False,
            max_sequence_length=self.info.prompt_length,
        )
        return (embeddings[0].cpu(),)

    def predict(
        self,
        denoiser: Any,
        x_t: torch.Tensor,
        sigma: torch.Tensor,
        conditioning: Sequence[PromptEmbedding],
    ) -> torch.Tensor:
        parameter = next(denoiser.parameters())
        latents = x_t.to(parameter.dtype).unsqueeze(2)
        captions = [embedding[0] for embedding in conditioning]
        outputs = denoiser(
            list(latents.unbind(dim=0)),
            1.0 - sigma,
            [c.to(parameter.device, parameter.dtype) for c in captions if c is not None],
            return_dict=False,
        )[0]
        return -torch.stack(list(outputs), dim=0).squeeze(2)

    def check_request(self, pipeline: Any, request: TextToImage) -> None:
        super().check_request(pipeline, request)
        if request.negative_prompt is not None and request.guidance == 0.0:
            raise UnsupportedRequestError("negative_prompt", "acts only with guidance above 0")


FAMILY = ZImageFamily()
