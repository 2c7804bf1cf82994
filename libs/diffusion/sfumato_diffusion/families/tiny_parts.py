"""Pieces that the families' tiny builds share: seeded weights, local tokenizers, one VAE."""

import contextlib
from collections.abc import Iterator

import torch
from diffusers import AutoencoderKL
from tokenizers.pre_tokenizers import ByteLevel
from torch import nn
from transformers import CLIPTokenizer, Qwen2Tokenizer, T5Tokenizer

QWEN_CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if not enable_thinking %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
_LETTERS = "abcdefghijklmnopqrstuvwxyz"


@contextlib.contextmanager
def build_scope(seed: int) -> Iterator[torch.Generator]:
    """A generator for the weights; torch's global state is as before afterwards."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield torch.Generator().manual_seed(seed)


@torch.no_grad()
def randomise(module: nn.Module, generator: torch.Generator, *, gain: float = 1.0) -> None:
    """Fill every parameter, in order of name: matrices N(0, gain^2 / fan_in), norms 1, biases 0.

    The weights then depend on the seed alone, not on how a library version initialises.
    """
    embeddings = {id(m.weight) for m in module.modules() if isinstance(m, nn.Embedding)}
    for name, parameter in sorted(module.named_parameters()):
        if id(parameter) in embeddings:
            parameter.normal_(generator=generator)
        elif parameter.ndim >= 2:
            fan_in = parameter[0].numel()
            parameter.normal_(std=gain * fan_in**-0.5, generator=generator)
        else:
            parameter.fill_(0.0 if name.endswith("bias") else 1.0)


@torch.no_grad()
def mirror(
    embed: nn.Linear, project: nn.Linear, generator: torch.Generator, *, sign: float = 1.0
) -> None:
    """Make `project` the inverse of `embed`: an orthogonal matrix and its transpose.

    Noise then passes through the residual path to the output, as it does in a trained denoiser,
    and adapters on the blocks between can steer it. A Hadamard matrix with random signs is
    exact in floating point, so the bytes do not depend on a linear algebra library.
    """
    size = embed.in_features
    matrix = torch.ones(1, 1)
    while matrix.shape[0] < size:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    signs = torch.randint(0, 2, (size, 1), generator=generator) * 2 - 1
    orthogonal = matrix * signs * size**-0.5
    embed.weight.copy_(orthogonal)
    project.weight.copy_(sign * orthogonal.T)


def tiny_vae(
    generator: torch.Generator, *, scaling_factor: float, shift_factor: float
) -> AutoencoderKL:
    """A KL autoencoder of the real layout: 8 x 8 pixels to one position of 8 channels."""
    vae = AutoencoderKL(
        in_channels=3,
        out_channels=3,
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        block_out_channels=(8, 8, 8, 8),
        layers_per_block=1,
        latent_channels=8,
        norm_num_groups=4,
        sample_size=64,
        scaling_factor=scaling_factor,
        shift_factor=shift_factor,
        use_quant_conv=False,
        use_post_quant_conv=False,
        mid_block_add_attention=False,
    )
    randomise(vae, generator)
    with torch.no_grad():
        log_variance = slice(8, 16)
        vae.encoder.conv_out.weight[log_variance].zero_()
        # Channels with a mean of their own: something that all pictures share and a short
        # training can learn.
        vae.encoder.conv_out.bias[:8].normal_(std=1.5, generator=generator)
        vae.encoder.conv_out.bias[log_variance] = -6.0  # a posterior as narrow as a trained one's
    return vae


def byte_alphabet() -> list[str]:
    """The 256 printable stand-ins of byte-level tokenizers."""
    return sorted(ByteLevel.alphabet())


def clip_tokenizer() -> CLIPTokenizer:
    """Letters and bytes, as they are and as word ends; 77 tokens long like CLIP-L's."""
    pieces = byte_alphabet()
    tokens = [*pieces, *(f"{piece}</w>" for piece in pieces)]
    tokens += ["<|startoftext|>", "<|endoftext|>"]
    return CLIPTokenizer(
        vocab={token: index for index, token in enumerate(tokens)},
        merges=[],
        model_max_length=77,
    )


def t5_tokenizer() -> T5Tokenizer:
    """Unigrams over ASCII, with whole-word pieces absent: each character is a token."""
    characters = [chr(code) for code in range(33, 127)]
    pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -2.0)]
    pieces += [(character, -3.0) for character in characters]
    pieces += [(f"▁{letter}", -2.5) for letter in _LETTERS]
    return T5Tokenizer(vocab=pieces, extra_ids=0, model_max_length=512)


def qwen_tokenizer() -> Qwen2Tokenizer:
    """Byte-level BPE without merges, with the chat template's special tokens."""
    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>"]
    tokens = [*byte_alphabet(), *specials]
    tokenizer = Qwen2Tokenizer(
        vocab={token: index for index, token in enumerate(tokens)},
        merges=[],
        additional_special_tokens=specials[1:],
        model_max_length=4096,
    )
    tokenizer.chat_template = QWEN_CHAT_TEMPLATE
    return tokenizer
