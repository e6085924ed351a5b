"""Files on local disks and in s3:// buckets, through pyarrow's file systems.

Credentials and endpoints come from the environment alone (AWS_*), so they never stand in a configuration,
a log or a pickled object: a `Location` is only its address, and finds its file system where it is used.
"""

import os
import posixpath
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import pyarrow as pa
from pyarrow import fs as pafs

from ray_cfnet.errors import InputError, JobError


@dataclass(frozen=True)
class FoundFile:
    """A file below a location: its path relative to it, and what tells one version of it from another."""

    path: str
    size: int
    modified_ns: int


@lru_cache
def _s3() -> pafs.FileSystem:
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    return pafs.S3FileSystem(
        endpoint_override=endpoint,
        region=region,
        allow_bucket_creation=False,
        # A server that answers 503 or not at all for a while is waited for.
        connect_timeout=10,
        request_timeout=30,
        retry_strategy=pafs.AwsStandardS3RetryStrategy(max_attempts=6),
    )


@dataclass(frozen=True)
class Location:
    """The address of a file or directory: a local path or s3://bucket/key."""

    uri: str

    @classmethod
    def of(cls, uri: "str | os.PathLike[str]") -> "Location":
        """Raises InputError for an address of a kind that is not supported."""
        text = os.fspath(uri)
        scheme, separator, _ = text.partition("://")
        if not separator:
            return cls(str(Path(text).expanduser().absolute()))
        if scheme == "file":
            return cls(str(Path(text[len("file://") :])))
        if scheme == "s3":
            return cls(text.rstrip("/"))
        raise InputError(f"{text}: storage of kind {scheme}:// is not supported", "use a local path or s3://")

    def __str__(self) -> str:
        return self.uri

    @property
    def is_local(self) -> bool:
        return not self.uri.startswith("s3://")

    @property
    def fs(self) -> pafs.FileSystem:
        return pafs.LocalFileSystem() if self.is_local else _s3()

    @property
    def path(self) -> str:
        """The address as its file system wants it."""
        return self.uri if self.is_local else self.uri[len("s3://") :]

    @property
    def name(self) -> str:
        return posixpath.basename(self.path)

    @property
    def parent(self) -> "Location":
        return Location(posixpath.dirname(self.uri))

    def __truediv__(self, name: str) -> "Location":
        return Location(posixpath.join(self.uri, name))

    def is_within(self, other: "Location") -> bool:
        """Whether this is the other or lies below it."""
        mine, theirs = (os.path.realpath(p.path) + "/" if p.is_local else p.uri + "/" for p in (self, other))
        return mine.startswith(theirs)

    def info(self) -> pafs.FileInfo:
        try:
            return self.fs.get_file_info(self.path)
        except OSError as error:
            raise InputError(f"{self}: cannot be reached: {error}", "check the address and the access to it") from None

    def exists(self) -> bool:
        return bool(self.info().type != pafs.FileType.NotFound)

    def is_dir(self) -> bool:
        return bool(self.info().type == pafs.FileType.Directory)

    def files(self) -> list[FoundFile]:
        """All files below, in the order of their paths, hidden ones (`_x`, `.x`) left out."""
        selector = pafs.FileSelector(self.path, recursive=True, allow_not_found=True)
        found = []
        for info in self.fs.get_file_info(selector):
            path = posixpath.relpath(info.path, self.path)
            # A partition such as _date=2026-11-15 is data, whatever its column is called.
            hidden = any(part.startswith(("_", ".")) and "=" not in part for part in path.split("/"))
            if info.type == pafs.FileType.File and not hidden:
                found.append(FoundFile(path, info.size, info.mtime_ns or 0))
        return sorted(found, key=lambda file: file.path)

    def read_bytes(self) -> bytes:
        with self.fs.open_input_stream(self.path) as stream:
            return bytes(stream.read())

    def write_bytes(self, content: bytes) -> None:
        """Writes the whole file or nothing."""
        with self.atomic_sink() as sink:
            sink.write(content)

    @contextmanager
    def atomic_sink(self) -> Iterator[pa.NativeFile]:
        """A stream whose file appears under its name only when the block ends without an error.

        Local: written beside, flushed to disk, renamed. S3: written to a local file and uploaded when it is
        complete, because closing an upload stream early would publish what it has so far. Raises JobError
        when the place cannot be written to.
        """
        try:
            with self._local_sink() if self.is_local else self._uploading_sink() as sink:
                yield sink
        except OSError as error:
            raise JobError(f"{self}: cannot be written ({error}); check the space and the access there") from error

    @contextmanager
    def _local_sink(self) -> Iterator[pa.NativeFile]:
        os.makedirs(posixpath.dirname(self.path), exist_ok=True)
        hidden = posixpath.join(posixpath.dirname(self.path), f".{self.name}.{uuid.uuid4().hex}")
        try:
            with pa.OSFile(hidden, "wb") as sink:
                yield sink
            _flush_to_disk(hidden)
            os.replace(hidden, self.path)
        except BaseException:
            with suppress(FileNotFoundError):
                os.unlink(hidden)
            raise

    @contextmanager
    def _uploading_sink(self) -> Iterator[pa.NativeFile]:
        with tempfile.TemporaryDirectory(prefix="ray-cfnet-") as directory:
            spooled = posixpath.join(directory, "object")
            with pa.OSFile(spooled, "wb") as sink:
                yield sink
            pafs.copy_files(
                spooled, self.path, source_filesystem=pafs.LocalFileSystem(), destination_filesystem=self.fs
            )

    def move_to(self, other: "Location") -> None:
        """Within one file system. Local: a rename. S3: a copy and a delete."""
        if other.is_local:
            os.makedirs(posixpath.dirname(other.path), exist_ok=True)
        self.fs.move(self.path, other.path)

    def delete(self) -> None:
        """Removes a file or a whole directory; nothing there is fine."""
        kind = self.info().type
        if kind == pafs.FileType.Directory:
            self.fs.delete_dir(self.path)
        elif kind == pafs.FileType.File:
            self.fs.delete_file(self.path)


def _flush_to_disk(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
