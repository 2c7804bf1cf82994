"""Seeds of everything random."""

LARGEST_SEED = 2**53 - 1
"""JSON and JavaScript hold no larger integer exactly; the protos bound their seeds by it."""
