"""The set of idle devices: membership, removal and a uniform draw in constant time, a million devices in two arrays."""

from array import array
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

_ABSENT = -1


class IdleSet:
    """Devices in no particular but reproducible order; `places[device]` is where the device stands in `items`."""

    __slots__ = ("_items", "_places")

    def __init__(self, devices: int, members: npt.NDArray[np.integer]) -> None:
        places = np.full(devices, _ABSENT, dtype=np.int32)
        places[members] = np.arange(len(members), dtype=np.int32)
        self._items = array("i", members.astype(np.int32).tobytes())
        self._places = array("i", places.tobytes())

    def __len__(self) -> int:
        return len(self._items)

    def __contains__(self, device: int) -> bool:
        return self._places[device] != _ABSENT

    def __iter__(self) -> Iterator[int]:
        return iter(self._items)

    def add(self, device: int) -> None:
        """Add a device, which must not be in the set yet."""
        self._places[device] = len(self._items)
        self._items.append(device)

    def remove(self, device: int) -> None:
        """Fill the gap with the last member."""
        place, last = self._places[device], self._items.pop()
        if last != device:
            self._items[place] = last
            self._places[last] = place
        self._places[device] = _ABSENT

    def sample(self, count: int, generator: np.random.Generator) -> list[int]:
        """Up to `count` distinct members, uniformly; none is removed."""
        size = len(self._items)
        if count == 1 and size:  # by far the most common, and three times as fast as an exactly uniform integer
            return [self._items[int(generator.random() * size)]]
        chosen = generator.choice(size, size=min(count, size), replace=False) if size else ()
        return [self._items[int(place)] for place in chosen]

    def members(self) -> npt.NDArray[np.int32]:
        """All members in their present order: what a snapshot keeps."""
        return np.array(self._items, dtype=np.int32)
