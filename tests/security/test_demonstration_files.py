"""Hostile npz and HDF5 files: one sentence, nothing run, nothing read outside, no memory filled."""

import io
import pickle
import resource
import zipfile

import h5py
import numpy as np
import pytest

from mcnn_ray.data.readers import read_file
from mcnn_ray.errors import DatasetError
from tests.security.payload import Payload

OBS, ACTIONS, LENGTHS = np.ones((6, 3)), np.zeros((6, 2)), np.array([6])


def refused(path, match):
    """Hold that a file is refused in one sentence, without a hundred megabytes of memory on the way."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(DatasetError, match=match) as caught:
        read_file(path)
    assert path.name in str(caught.value)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # KiB


def npy(shape, descr="<f8", data=b""):
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": descr, "fortran_order": False, "shape": shape})
    return file.getvalue() + data


def write_npz(path, **members):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name in ("observations", "actions", "episode_lengths"):
            array = {"observations": OBS, "actions": ACTIONS, "episode_lengths": LENGTHS}[name]
            plain = io.BytesIO()
            np.save(plain, array)
            file.writestr(f"{name}.npy", members.get(name, plain.getvalue()))
    return path


def test_payload_runs_when_it_is_unpickled(tmp_path):
    pickle.loads(Payload(tmp_path / "ran").pickled()).close()  # noqa: S301  (the point)
    assert (tmp_path / "ran").exists()


def test_plain_file_of_this_layout_is_read(tmp_path):
    assert read_file(write_npz(tmp_path / "d.npz")).steps == 6


@pytest.mark.parametrize("name", ["observations", "episode_lengths"])
def test_object_arrays_of_numpy_are_refused(tmp_path, payload, name):
    array = np.empty(1, dtype=object)
    array[0] = payload
    np.savez(tmp_path / "d.npz", **{"observations": OBS, "actions": ACTIONS, name: array})
    refused(tmp_path / "d.npz", f"'{name}' holds object")


@pytest.mark.parametrize("name", ["d.npz", "d.hdf5"])
def test_pickles_under_another_name_are_refused(tmp_path, payload, name):
    (tmp_path / name).write_bytes(payload.pickled())
    refused(tmp_path / name, "cannot be read")


def test_pickle_as_a_member_of_npz_is_refused(tmp_path, payload):
    refused(write_npz(tmp_path / "d.npz", observations=payload.pickled()), "cannot be read")


@pytest.fixture
def bomb(tmp_path):
    """An npz of some megabytes whose observations are 4 TiB of zeros by its own directory."""
    path = write_npz(tmp_path / "d.npz", observations=npy((2**39,), data=bytes(2**20)))
    content = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as file:
        told = file.getinfo("observations.npy").file_size.to_bytes(4, "little")
    place = content.index(b"PK\x01\x02")
    assert content[place + 24 : place + 28] == told
    extra = (1).to_bytes(2, "little") + (8).to_bytes(2, "little") + (2**42 + 128).to_bytes(8, "little")  # zip64
    name_length = int.from_bytes(content[place + 28 : place + 30], "little")
    content[place + 24 : place + 28] = b"\xff" * 4
    content[place + 30 : place + 32] = len(extra).to_bytes(2, "little")
    end = place + 46 + name_length
    content[end:end] = extra
    end_of_directory = content.index(b"PK\x05\x06")
    size = int.from_bytes(content[end_of_directory + 12 : end_of_directory + 16], "little") + len(extra)
    content[end_of_directory + 12 : end_of_directory + 16] = size.to_bytes(4, "little")
    path.write_bytes(content)
    return path


def test_archive_bomb_is_refused_by_its_declared_size(bomb):
    refused(bomb, r"it takes 6,144\.0 GiB of memory, and .* GiB are free")


@pytest.mark.parametrize("shape", [(2**40,), (2**62, 2**62), (10**9, 10**9, 0, 1), (-6, 3)])
def test_shapes_that_the_file_does_not_hold_are_refused(tmp_path, shape):
    refused(
        write_npz(tmp_path / "d.npz", observations=npy(shape, data=OBS.tobytes())),
        "cannot be read|expected .* rows|is empty",
    )


@pytest.mark.parametrize(
    "header",
    [b"\x93NUMPY\x01\x00\xff\xff" + b"(" * 65535, b"\x93NUMPY\x01\x00\x10\x00__import__('os')", b"\x93NUMPY\x03\x00"],
)
def test_headers_of_numpy_that_are_no_headers_are_refused(tmp_path, header):
    refused(write_npz(tmp_path / "d.npz", observations=header), "cannot be read")


@pytest.mark.parametrize("lengths", [[2**62] * 4 + [6], [2**63 - 1, 7, 2**63 - 1, 1, 0], [-6, 12], [1e300], [np.inf]])
def test_episode_lengths_beyond_the_steps_are_refused_though_their_sum_overflows_to_it(tmp_path, lengths):
    np.savez(tmp_path / "d.npz", observations=OBS, actions=ACTIONS, episode_lengths=np.array(lengths))
    refused(tmp_path / "d.npz", "do not add up")


@pytest.fixture
def hdf5(tmp_path):
    """Write an HDF5 file whose observations are made by a function of the file; beside it lies one with real ones."""
    other = tmp_path / "other.hdf5"
    with h5py.File(other, "w") as file:
        file["secret"] = OBS
    (tmp_path / "raw").write_bytes(OBS.tobytes())

    def write(make):
        with h5py.File(tmp_path / "d.hdf5", "w") as file:
            file["actions"], file["episode_lengths"] = ACTIONS, LENGTHS
            make(file, other)
        return tmp_path / "d.hdf5"

    return write


def virtual(file, other):
    layout = h5py.VirtualLayout(OBS.shape, "f8")
    layout[:] = h5py.VirtualSource(str(other), "secret", OBS.shape)
    file.create_virtual_dataset("observations", layout)


def soft_to_external(file, other):
    file["away"] = h5py.ExternalLink(str(other), "/")
    file["observations"] = h5py.SoftLink("/away/secret")


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda f, o: f.__setitem__("observations", h5py.ExternalLink(str(o), "secret")), "link to elsewhere"),
        (lambda f, o: f.__setitem__("observations", h5py.ExternalLink("/dev/zero", "x")), "link to elsewhere"),
        (soft_to_external, "link to elsewhere"),
        (virtual, "values of other arrays or files"),
        (
            lambda f, o: f.create_dataset(
                "observations", OBS.shape, "f8", external=[(str(o.parent / "raw"), 0, OBS.nbytes)]
            ),
            "values of other arrays or files",
        ),
        (lambda f, o: f.create_dataset("observations", (1,), h5py.ref_dtype), "holds object"),
        (lambda f, o: f.create_dataset("observations", (6,), h5py.vlen_dtype(np.float64)), "holds object"),
        (lambda f, o: f.create_dataset("observations", (10**13, 3), "f8", chunks=(1000, 3)), "GiB of disk"),
        (lambda f, o: f.create_dataset("observations", (2**40,), "u1", chunks=(1000,)), "GiB of disk"),
        (lambda f, o: f.create_dataset("observations", data=h5py.Empty("f8")), "cannot be read|is empty"),
    ],
    ids=[
        "external",
        "external-device",
        "soft",
        "virtual",
        "raw",
        "references",
        "ragged",
        "huge",
        "huge-bytes",
        "empty",
    ],
)
def test_hdf5_that_leads_out_of_its_file_or_declares_too_much_is_refused(hdf5, make, match):
    refused(hdf5(make), match)
