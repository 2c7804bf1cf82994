"""What this package needs of others. Loads none of it."""

PACKAGES = (
    "accelerate",
    "diffusers",
    "huggingface_hub",
    "peft",
    "safetensors",
    "torch",
    "transformers",
)
"""What the extra ``torch`` installs, as far as it is imported."""
