"""Groups of pictures that look alike, by their perceptual hashes."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Final

import numpy as np

DEFAULT_MAX_DISTANCE: Final = 6
_BLOCK_PAIRS: Final = 1 << 22
"""So many distances are held at once."""


def near_duplicates(
    hashes: Sequence[int], *, max_distance: int = DEFAULT_MAX_DISTANCE
) -> list[list[int]]:
    """Groups hashes that differ in few bits, directly or through others of the group.

    Every pair is compared, so none is missed.

    Args:
        hashes: unsigned, 64 bits each.
        max_distance: bits in which two differ at most.

    Returns:
        Groups of at least two indices, each ascending, in the order of their first.
    """
    values = np.array(hashes, dtype=np.uint64)
    count = len(values)
    # Of each hash, the smallest index of its group so far.
    group_of = np.arange(count)
    block = max(1, _BLOCK_PAIRS // max(1, count))
    for start in range(0, count, block):
        rows = values[start : start + block, None]
        is_near = np.bitwise_count(rows ^ values[None, :]) <= max_distance
        for row in np.flatnonzero(is_near.sum(axis=1) > 1):
            groups = np.unique(group_of[is_near[row]])
            if len(groups) > 1:
                group_of[np.isin(group_of, groups)] = groups[0]
    members: dict[int, list[int]] = defaultdict(list)
    for index in range(count):
        members[int(group_of[index])].append(index)
    return [group for group in members.values() if len(group) > 1]
