import os
from pathlib import Path

import pytest

from ray_cfnet.errors import InputError, JobError
from ray_cfnet.tables.storage import Location


def everything_below(directory: Path) -> list[str]:
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file())


def fail_halfway(place: Location, error: BaseException) -> None:
    with place.atomic_sink() as sink:
        sink.write(b"half")
        raise error


def test_a_written_file_is_read_back(tmp_path: Path):
    place = Location.of(tmp_path) / "deep" / "below" / "file.json"
    place.write_bytes(b"content")
    assert place.read_bytes() == b"content"
    assert everything_below(tmp_path) == ["deep/below/file.json"]


def test_writing_again_replaces_the_whole_file(tmp_path: Path):
    place = Location.of(tmp_path) / "file"
    place.write_bytes(b"a long first content")
    place.write_bytes(b"short")
    assert place.read_bytes() == b"short"


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_error_while_writing_leaves_nothing_behind(tmp_path: Path, error: type[BaseException]):
    with pytest.raises(error):
        fail_halfway(Location.of(tmp_path) / "file", error())
    assert everything_below(tmp_path) == []


def test_an_error_while_writing_keeps_the_file_that_was_there(tmp_path: Path):
    place = Location.of(tmp_path) / "file"
    place.write_bytes(b"old")
    with pytest.raises(ValueError, match="broken"):
        fail_halfway(place, ValueError("broken"))
    assert place.read_bytes() == b"old"
    assert everything_below(tmp_path) == ["file"]


def test_a_file_that_cannot_take_its_name_leaves_nothing_behind(tmp_path: Path):
    (tmp_path / "taken").mkdir()
    with pytest.raises(JobError, match="taken"):
        (Location.of(tmp_path) / "taken").write_bytes(b"content")
    assert everything_below(tmp_path) == []


def test_readers_never_see_a_partial_file(tmp_path: Path):
    root = Location.of(tmp_path)
    place = root / "file"
    with place.atomic_sink() as sink:
        sink.write(b"half")
        sink.flush()
        assert not place.exists()
        assert root.files() == []
        sink.write(b" and half")
    assert place.read_bytes() == b"half and half"


def test_readers_see_the_old_file_until_the_new_one_is_complete(tmp_path: Path):
    place = Location.of(tmp_path) / "file"
    place.write_bytes(b"old")
    with place.atomic_sink() as sink:
        sink.write(b"new")
        sink.flush()
        assert place.read_bytes() == b"old"
    assert place.read_bytes() == b"new"


def test_an_object_is_visible_only_when_complete(bucket: Location):
    place = bucket / "ds=1" / "file"
    with place.atomic_sink() as sink:
        sink.write(b"content")
        assert not place.exists()
    assert place.read_bytes() == b"content"
    assert [file.path for file in bucket.files()] == ["ds=1/file"]


def test_an_error_while_writing_an_object_leaves_nothing_behind(bucket: Location):
    place = bucket / "file"
    with pytest.raises(ValueError, match="broken"):
        fail_halfway(place, ValueError("broken"))
    assert not place.exists()


def test_hidden_files_and_files_in_hidden_directories_are_not_listed(tmp_path: Path):
    for name in ["b", "a/c", "_hidden", ".hidden", "_dir/x", "a/.dir/x", "a/_x", "a_b/.x"]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    assert [file.path for file in Location.of(tmp_path).files()] == ["a/c", "b"]


def test_a_hidden_root_still_lists_its_files(tmp_path: Path):
    (tmp_path / "_root").mkdir()
    (tmp_path / "_root" / "file").write_text("x")
    assert [file.path for file in Location.of(tmp_path / "_root").files()] == ["file"]


def test_a_found_file_carries_its_size_and_time(tmp_path: Path):
    (tmp_path / "file").write_bytes(b"12345")
    os.utime(tmp_path / "file", ns=(10**18, 10**18))
    [found] = Location.of(tmp_path).files()
    assert (found.size, found.modified_ns) == (5, 10**18)


def test_a_place_that_does_not_exist_lists_no_files(tmp_path: Path):
    assert Location.of(tmp_path / "nowhere").files() == []


@pytest.mark.parametrize("address", ["gs://bucket/x", "hdfs://host/x", "http://host/x"])
def test_storage_of_an_unknown_kind_is_refused(address: str):
    with pytest.raises(InputError, match="is not supported") as error:
        Location.of(address)
    assert address in str(error.value)
    assert "s3://" in error.value.remedy


def test_relative_and_file_addresses_become_absolute_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    assert Location.of("data/x").uri == str(tmp_path / "data" / "x")
    assert Location.of(f"file://{tmp_path}/x").uri == str(tmp_path / "x")
    assert Location.of("~/x").uri == str(Path.home() / "x")


def test_an_s3_address_keeps_its_bucket_and_key():
    place = Location.of("s3://loans/day/")
    assert (place.uri, place.path, place.name) == ("s3://loans/day", "loans/day", "day")
    assert (place / "a.parquet").path == "loans/day/a.parquet"
    assert not place.is_local


def test_a_moved_directory_leaves_its_old_place(tmp_path: Path):
    root = Location.of(tmp_path)
    (root / "staged" / "file").write_bytes(b"x")
    (root / "staged").move_to(root / "done" / "ds=1")
    assert everything_below(tmp_path) == ["done/ds=1/file"]


def test_deleting_takes_files_and_directories_and_does_not_mind_nothing(tmp_path: Path):
    root = Location.of(tmp_path)
    (root / "directory" / "file").write_bytes(b"x")
    (root / "file").write_bytes(b"x")
    for name in ("directory", "file", "nothing"):
        (root / name).delete()
    assert list(tmp_path.iterdir()) == []
