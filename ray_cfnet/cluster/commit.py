"""How a complete partition takes the place of the old one, and how a commit that was killed is finished.

A commit starts when every file of the partition is complete in the staging directory, and first writes down what it
is about to do. From then on it can only go forward: whoever takes the output's lock next finishes it.

Local and shared POSIX file systems: the partition's directory and the staged one change names in one step, so
a reader finds either all of the old files or all of the new ones. Where the file system cannot do that, the old
directory steps aside first. S3 has no rename, and the root of a table or a partition with partitions below it
cannot change its name: there the old files go first, then the new ones come. A reader may then miss rows for
a moment, but never sees one twice.

A Delta table takes the new files of all partitions in one commit at the end of the run (tables/delta.py); until then
nobody looks at them, and old files stay for time travel. Rejects are plain files in either format.
"""

import json
import os
import posixpath
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from ray_cfnet.cluster.ledger import REJECTS, RUNS, RunFiles, UnitRecord, join
from ray_cfnet.errors import InputError, JobError
from ray_cfnet.tables.delta import DeltaFile, active_files, commit_delta
from ray_cfnet.tables.storage import Location
from ray_cfnet.tables.swap import exchange

_JOURNAL = "commit.json"
_MOVE_THREADS = 16
_PART = re.compile(r"part-\d{5,}-[0-9a-f]{16}\.parquet")
_HALF_PART = re.compile(rf"\.{_PART.pattern}\.[0-9a-f]{{32}}")


class ParquetCommit:
    """A run whose partitions become visible one by one, as they are complete."""

    def __init__(self, run: RunFiles) -> None:
        self.run = run
        self.visible: set[str] = set()
        """Partitions whose rows readers find."""

    def partition(self, name: str, records: list[UnitRecord]) -> None:
        """Every row of the partition is in the records' files, which are staged or in place."""
        commit_partition(self.run, name, files_of(records))
        self.visible.add(name)

    def stands(self, files: set[str]) -> bool:
        """Whether these files are still what a reader finds."""
        return self.run.files_in_place().issuperset(files)

    def end(self) -> None:
        """Nothing is left to do."""


class DeltaCommit(ParquetCommit):
    """A run whose partitions become visible all at once, at its end."""

    def __init__(self, run: RunFiles, columns: pa.Schema) -> None:
        super().__init__(run)
        self.columns = columns
        self.complete: dict[str, list[DeltaFile]] = {}

    def partition(self, name: str, records: list[UnitRecord]) -> None:
        files = files_of(records)
        rejected = [file for file in files if file.startswith(f"{REJECTS}/")]
        _journalled(self.run, name, [join(REJECTS, name)], rejected)
        self.complete[name] = []
        for record in records:
            for file in set(record.files) - set(rejected):
                if (self.run.staging / file).exists():
                    (self.run.staging / file).move_to(self.run.output / file)
                size = (self.run.output / file).info().size
                self.complete[name].append(DeltaFile(file, name, size, record.rows_out))

    def stands(self, files: set[str]) -> bool:
        rejected = {file for file in files if file.startswith(f"{REJECTS}/")}
        return super().stands(rejected) and set(active_files(self.run.output)).issuperset(files - rejected)

    def end(self) -> None:
        if self.complete:
            files = [file for name in sorted(self.complete) for file in self.complete[name]]
            commit_delta(self.run.output, self.columns, sorted(self.complete), files, self.run.run_id)
            self.visible.update(self.complete)


def check_layout(output: Location, partitions: list[str]) -> None:
    """Raises InputError when earlier runs left rows above or below a partition: readers would find them twice."""
    there = {posixpath.dirname(file.path) for file in output.files() if _PART.fullmatch(posixpath.basename(file.path))}
    for old in sorted(there - set(partitions)):
        for new in partitions:
            if _is_below(old, new) or _is_below(new, old):
                raise InputError(
                    f"{output}: has rows of an earlier run in {old or 'its root'}, and the table now is partitioned as "
                    f"{new or 'one directory'}",
                    "the layout changed: choose another output.path, or remove the old files",
                )


def _is_below(inner: str, outer: str) -> bool:
    return inner != outer and (not outer or inner.startswith(f"{outer}/"))


def files_of(records: list[UnitRecord]) -> list[str]:
    return sorted(file for record in records for file in record.files)


def commit_partition(run: RunFiles, partition: str, files: list[str]) -> None:
    """Makes the run's files all that is visible of a partition; `files` empty: its rows are gone.

    Files that no run wrote are somebody else's and stay.
    """
    _journalled(run, partition, [partition, join(REJECTS, partition)], files)


def _journalled(run: RunFiles, partition: str, directories: list[str], files: list[str]) -> None:
    journal = run.directory / _JOURNAL
    content = {"partition": partition, "directories": directories, "files": files}
    journal.write_bytes(json.dumps(content).encode())
    _carry_out(run, directories, files)
    journal.delete()


def finish_commits(output: Location) -> list[str]:
    """Finishes commits that were killed on the way; needs the output's lock. Returns their partitions."""
    finished = []
    for found in (output / RUNS).files():
        run_id, _, name = found.path.partition("/")
        if name == _JOURNAL:
            run = RunFiles(output, run_id)
            journal = _read_journal(run)
            _carry_out(run, journal["directories"], journal["files"])
            (run.directory / _JOURNAL).delete()
            finished.append(journal["partition"])
    return finished


def _read_journal(run: RunFiles) -> dict[str, Any]:
    """Raises JobError for one that no run wrote: its paths are going to be moved and deleted."""
    place = run.directory / _JOURNAL
    try:
        journal = json.loads(place.read_bytes())
        inside = all(".." not in directory.split("/") for directory in journal["directories"])
        ours = all(
            posixpath.dirname(file) in journal["directories"] and _PART.fullmatch(posixpath.basename(file))
            for file in journal["files"]
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        inside = ours = False
    if not (inside and ours):
        raise JobError(f"{place}: not a journal of ray-cfnet; find out who wrote it, then remove it")
    return dict(journal)


def _carry_out(run: RunFiles, directories: list[str], files: list[str]) -> None:
    """Every step looks at what is there, so that it can be repeated from any point."""
    for directory in directories:
        mine = [file for file in files if posixpath.dirname(file) == directory]
        change = _Change(run, directory, mine)
        try:
            if mine and change.can_swap():
                change.swap()
            else:
                change.file_by_file()
        except OSError as error:
            raise JobError(
                f"{run.output / directory}: cannot be committed ({error}); mend it and run again: the work is kept"
            ) from error


@dataclass(frozen=True)
class _Change:
    """One directory of the output: its old files out, `files` in."""

    run: RunFiles
    directory: str
    files: list[str]

    @property
    def place(self) -> Location:
        return self.run.output / self.directory if self.directory else self.run.output

    @property
    def staged(self) -> Location:
        return self.run.staging / self.directory if self.directory else self.run.staging

    @property
    def aside(self) -> Location:
        return self.run.directory / "replaced" / self.directory

    def can_swap(self) -> bool:
        if not self.place.is_local or self.directory in ("", REJECTS):
            return False
        in_place = [os.path.exists((self.run.output / file).path) for file in self.files]
        if any(in_place) and not all(in_place):  # some were committed before: the staged directory lacks them
            return False
        places = [place.path for place in (self.place, self.staged) if os.path.isdir(place.path)]
        return not any(entry.is_dir() for place in places for entry in os.scandir(place))

    def swap(self) -> None:
        place, staged, aside = self.place.path, self.staged.path, self.aside.path
        names = [posixpath.basename(file) for file in self.files]
        if not all(os.path.exists(os.path.join(place, name)) for name in names):
            for name in set(os.listdir(staged)) - set(names):  # half a file of an actor that was killed
                os.unlink(os.path.join(staged, name))
            os.makedirs(os.path.dirname(place), exist_ok=True)
            if not os.path.isdir(place):
                os.rename(staged, place)
            elif not exchange(staged, place):
                os.makedirs(os.path.dirname(aside), exist_ok=True)
                os.rename(place, aside)
                os.rename(staged, place)
        for old in (staged, aside):
            if os.path.isdir(old):
                self._empty(old)

    def _empty(self, old: str) -> None:
        for name in os.listdir(old):
            if not (_PART.fullmatch(name) or _HALF_PART.fullmatch(name)):
                os.rename(os.path.join(old, name), os.path.join(self.place.path, name))
        Location.of(old).delete()

    def file_by_file(self) -> None:
        missing = [file for file in self.files if not self._is_there(file)]
        if missing:  # before anything is deleted
            raise JobError(f"{self.run.staging / missing[0]}: is gone; remove {self.run.directory} and run again")
        for found in self.place.files():
            if _PART.fullmatch(found.path) and join(self.directory, found.path) not in self.files:
                (self.place / found.path).delete()
        # On S3 each is a copy, made by the server.
        with ThreadPoolExecutor(_MOVE_THREADS) as threads:
            list(threads.map(self._move, self.files))

    def _is_there(self, file: str) -> bool:
        return (self.run.staging / file).exists() or (self.run.output / file).exists()

    def _move(self, file: str) -> None:
        if (self.run.staging / file).exists():
            (self.run.staging / file).move_to(self.run.output / file)
