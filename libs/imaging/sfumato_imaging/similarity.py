"""Groups of pictures that look alike, by their perceptual hashes."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from sfumato_imaging.perceptual_hash import HASH_BITS

DEFAULT_MAX_DISTANCE: Final = 6
_BLOCK_PAIRS: Final = 1 << 22
"""So many distances are held at once."""

Indices: TypeAlias = NDArray[np.int64]


def near_duplicates(
    hashes: Sequence[int], *, max_distance: int = DEFAULT_MAX_DISTANCE
) -> list[list[int]]:
    """Groups hashes that differ in few bits, directly or through others of the group.

    None is missed: of `max_distance` + 1 bands of bits at least one is equal in two hashes that differ in
    no more bits than that, so that only hashes with an equal band are compared (Norouzi, Punjani and
    Fleet, Fast Search in Hamming Space with Multi-Index Hashing, 2012).

    Args:
        hashes: unsigned, 64 bits each.
        max_distance: bits in which two differ at most.

    Returns:
        Groups of at least two indices, each ascending, in the order of their first.
    """
    distinct, inverse = np.unique(np.array(hashes, dtype=np.uint64), return_inverse=True)
    groups = _Groups(len(distinct))
    for band in _bands(distinct, max_distance + 1):
        for run in _runs(band):
            _join_near(distinct, run, groups, max_distance)
    members: dict[int, list[int]] = defaultdict(list)
    for index, place in enumerate(inverse.tolist()):
        members[groups.of(place)].append(index)
    return [group for group in members.values() if len(group) > 1]


class _Groups:
    """Disjoint sets of places: union-find, whose labels may lag behind the roots that `of` finds."""

    def __init__(self, num_places: int) -> None:
        self._label: Indices = np.arange(num_places)
        self._parent = list(range(num_places))

    def of(self, place: int) -> int:
        """What all of a group have in common."""
        root = int(self._label[place])
        while self._parent[root] != root:
            self._parent[root] = root = self._parent[self._parent[root]]
        return root

    def join(self, places: Indices) -> None:
        """Makes one group of the groups of several places."""
        labels = np.unique(self._label[places])
        if len(labels) > 1:
            roots = [self.of(label) for label in labels.tolist()]
            for root in roots:
                self._parent[root] = min(roots)
            self._label[places] = min(roots)


def _bands(values: NDArray[np.uint64], num_bands: int) -> Iterator[NDArray[np.uint64]]:
    """Pieces of the bits of each value, about equally wide; without width where there are more than bits."""
    edges = np.linspace(0, HASH_BITS, num_bands + 1).astype(int).tolist()
    for low, high in pairwise(edges):
        yield values >> np.uint64(low) & np.uint64((1 << high - low) - 1)


def _runs(band: NDArray[np.uint64]) -> Iterator[Indices]:
    """The places of each value that several places have."""
    order = np.argsort(band, kind="stable")
    ends = np.flatnonzero(np.diff(band[order])) + 1
    return (run for run in np.split(order, ends) if len(run) > 1)


def _join_near(
    values: NDArray[np.uint64], run: Indices, groups: _Groups, max_distance: int
) -> None:
    """Compares every pair of a run."""
    block = max(1, _BLOCK_PAIRS // len(run))
    for start in range(0, len(run), block):
        rows = values[run[start : start + block], None]
        is_near = np.bitwise_count(rows ^ values[run][None, :]) <= max_distance
        for row in np.flatnonzero(is_near.sum(axis=1) > 1):
            groups.join(run[is_near[row]])
