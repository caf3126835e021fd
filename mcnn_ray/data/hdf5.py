"""HDF5 files that keep to themselves: what leads out of them, into other files, is refused before it is followed."""

from __future__ import annotations

import h5py

__all__ = ["check_whole_file", "own_dataset"]


def own_dataset(group: h5py.Group, name: str) -> h5py.Dataset:
    """Return an array whose values lie in the file itself.

    Args:
        group: of the file.
        name: in the group, of an entry that exists.

    Raises:
        ValueError: it is a link to elsewhere, a view of other arrays or files, or no array.
    """
    found = _own(group, name)
    if not isinstance(found, h5py.Dataset) or found.shape is None:
        raise ValueError(f"'{name}' is no array")
    return found


def check_whole_file(file: h5py.File) -> int:
    """Check that nothing in a file leads out of it, and that its groups form a tree.

    Args:
        file: open for reading.

    Returns:
        Bytes that its arrays take when they are read, each as often as it is named.

    Raises:
        ValueError: something leads out, or a group is named twice: it may hold itself.
    """
    total, left, seen = 0, [file["/"]], set()
    while left:
        group = left.pop()
        address = h5py.h5o.get_info(group.id).addr
        if address in seen:
            raise ValueError(f"its group {group.name} is there twice")
        seen.add(address)
        for name in group:
            found = _own(group, name)
            if isinstance(found, h5py.Dataset):
                total += found.size * found.dtype.itemsize if found.shape is not None else 0
            elif isinstance(found, h5py.Group):
                left.append(found)
    return total


def _own(group: h5py.Group, name: str) -> h5py.Dataset | h5py.Group | h5py.Datatype:
    if not isinstance(group.get(name, getlink=True), h5py.HardLink):
        raise ValueError(f"'{name}' is a link to elsewhere, which is not followed")
    found = group[name]
    if isinstance(found, h5py.Dataset) and (found.is_virtual or found.external):
        raise ValueError(f"'{name}' shows values of other arrays or files, which are not read")
    return found
