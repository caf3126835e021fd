import pytest

from mcnn_ray.artifacts import content_hash, verify_manifest, write_directory, write_json, write_text
from mcnn_ray.errors import ArtifactError


def test_directory_appears_whole(tmp_path):
    with write_directory(tmp_path / "made") as target:
        (target / "a").write_text("1")
        assert not (tmp_path / "made").exists()
    verify_manifest(tmp_path / "made")
    assert [path.name for path in tmp_path.iterdir()] == ["made"]


def test_failure_while_writing_leaves_nothing_new_and_the_old_untouched(tmp_path):
    with write_directory(tmp_path / "made") as target:
        (target / "a").write_text("old")
    with pytest.raises(RuntimeError), write_directory(tmp_path / "made") as target:
        (target / "a").write_text("new")
        raise RuntimeError
    assert (tmp_path / "made" / "a").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["made"]


def test_existing_directory_is_replaced_whole(tmp_path):
    for name in ("a", "b"):
        with write_directory(tmp_path / "made") as target:
            (target / name).write_text(name)
    assert sorted(path.name for path in (tmp_path / "made").iterdir()) == ["b", "manifest.json"]


def test_failed_file_write_leaves_the_old_file(tmp_path, monkeypatch):
    write_text(tmp_path / "file", "old")
    monkeypatch.setattr("mcnn_ray.artifacts._sync", lambda path: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        write_json(tmp_path / "file", {"new": 1})
    assert (tmp_path / "file").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("text", ["", "[1]", "{", "{}"])
def test_damaged_manifest_is_refused(tmp_path, text):
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(ArtifactError):
        verify_manifest(tmp_path)


def test_content_hash_ignores_the_order_of_keys():
    assert content_hash({"a": 1, "b": 2}) == content_hash({"b": 2, "a": 1})
    assert content_hash({"a": 1}) != content_hash({"a": 2})
