"""A run folder: every answer kept the moment it arrives, so that a killed run resumes without asking again.

An answer is found again by (stream, a 128-bit hash of the row, how often this process asked that row in this stream). A
run with the same seed asks the same batches in the same order, so each batch is either wholly there or wholly new,
and the resumed result is bit-identical. One batch is one row of the database, written in one transaction: a kill
loses at most the batch in flight. How many rows were really sent stands in a memory-mapped counter that is raised
before they go out, so what a kill lost is known too.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import hashlib
import json
import mmap
import sqlite3
import struct
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from foldline.errors import BadFile, BadInput
from foldline.oracles.protocols import Source, all_finite, joined
from foldline.oracles.rowkeys import DIGEST, Array, Counts, Places, row_digests, short_keys, with_occurrence
from foldline.oracles.shapes import tensors_of
from foldline.oracles.wrappers import Relay

DATABASE, COUNTER, RECORD = "transcript.sqlite", "sent", "run.json"
CACHED_BATCHES = 8
SCHEMA = """
CREATE TABLE IF NOT EXISTS streams(id INTEGER PRIMARY KEY, name TEXT UNIQUE NOT NULL);
CREATE TABLE IF NOT EXISTS batches(
    id INTEGER PRIMARY KEY, stream INTEGER NOT NULL, digests BLOB NOT NULL, occurrences BLOB,
    dtype TEXT NOT NULL, width INTEGER NOT NULL, answers BLOB NOT NULL);
"""
_open: dict[Path, Run] = {}


class Run:
    """One folder, held by one process at a time; oracles of that process share it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._counter = (folder / COUNTER).open("a+b")
        except OSError as error:
            raise BadFile(f"The run folder {folder} cannot be used: {error.strerror}.") from error
        try:
            fcntl.flock(self._counter, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._counter.close()
            raise BadInput(f"The run folder {folder} is in use by another process.") from error
        if self._counter.seek(0, 2) < 8:
            self._counter.truncate(8)
        self._map = mmap.mmap(self._counter.fileno(), 8)
        try:
            # Autocommit: each batch is one statement, and so one transaction.
            self.db = sqlite3.connect(folder / DATABASE, isolation_level=None, check_same_thread=False)
            # Measured on 3 MB batches: 16 KB pages and rare checkpoints take 4 ms where the defaults take 15.
            self.db.execute("PRAGMA page_size=16384")
            self.db.execute("PRAGMA journal_mode=WAL")
            self.db.execute("PRAGMA wal_autocheckpoint=4000")
            self.db.execute("PRAGMA synchronous=NORMAL")        # survives the process; a power cut may cost the tail
            self.db.executescript(SCHEMA)
        except sqlite3.DatabaseError as error:
            self.close()
            raise BadFile(f"{folder / DATABASE} is not a transcript that can be read: {error}.") from error
        self._lock = threading.Lock()
        self._streams: dict[str, Stream] = {}

    def stream(self, name: str) -> Stream:
        if name not in self._streams:
            self._streams[name] = Stream(self, name)
        return self._streams[name]

    @property
    def sent(self) -> int:
        """Rows that were sent to the target over the life of the folder."""
        return int(struct.unpack("<q", self._map[:8])[0])

    def about_to_send(self, rows: int) -> None:
        with self._lock:
            self._map[:8] = struct.pack("<q", self.sent + rows)

    @property
    def kept(self) -> int:
        (rows,) = self.db.execute(f"SELECT COALESCE(SUM(LENGTH(digests)), 0) / {DIGEST} FROM batches").fetchone()
        return int(rows)

    @property
    def lost(self) -> int:
        """Rows that were sent and whose answers never got here: a kill, or a target that failed."""
        return self.sent - self.kept

    def made_by(self, **what: Any) -> None:
        same_maker(self.folder / RECORD, what)

    def close(self) -> None:
        _open.pop(self.folder, None)
        with contextlib.suppress(AttributeError):
            self.db.close()
        with contextlib.suppress(AttributeError):
            self._map.close()
        self._counter.close()

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def same_maker(record: Path, what: Mapping[str, Any]) -> None:
    """Write down what makes a run (target, seed, method ...), or refuse a folder that something else made."""
    told = json.loads(json.dumps(dict(what), default=str))
    try:
        if not record.exists():
            record.parent.mkdir(parents=True, exist_ok=True)
            record.with_suffix(".tmp").write_text(json.dumps(told, indent=1) + "\n")
            record.with_suffix(".tmp").replace(record)
            return
        known = json.loads(record.read_text())
    except OSError as error:
        raise BadFile(f"The run folder {record.parent} cannot be used: {error.strerror}.") from error
    except ValueError as error:
        raise BadFile(f"{record} is not JSON: {error}.") from error
    differing = [k for k in sorted({*known, *told}) if known.get(k) != told.get(k)]
    if differing:
        parts = "; ".join(f"{k} was {known.get(k)!r} and is now {told.get(k)!r}" for k in differing)
        raise BadInput(f"The run folder {record.parent} was made by another run: {parts}. "
                       f"Repeat the first command to resume it, or give a new folder.")


@atexit.register
def close_all() -> None:
    """A clean end folds the write-ahead log into the database."""
    for run in list(_open.values()):
        run.close()


def open_run(folder: Path | str | Run, **what: Any) -> Run:
    """The run in this folder, new or resumed. `what` (target=, seed=, method= ...) must match what made it."""
    if isinstance(folder, Run):
        run = folder
    else:
        path = Path(folder).resolve()
        run = _open.get(path) or Run(path)
        _open[path] = run
    if what:
        run.made_by(**what)
    return run


class Stream:
    """The answers of one kind from one target: counts what this process asks, finds what earlier ones were told."""

    def __init__(self, run: Run, name: str) -> None:
        self.run = run
        run.db.execute("INSERT OR IGNORE INTO streams(name) VALUES (?)", (name,))
        (self.id,) = run.db.execute("SELECT id FROM streams WHERE name = ?", (name,)).fetchone()
        self.counts = Counts()
        self.places = self._stored()
        self.cache: OrderedDict[int, tuple[bytes, Tensor]] = OrderedDict()
        self.lock = threading.Lock()

    def _stored(self) -> Places:
        (rows,) = self.run.db.execute(
            f"SELECT COALESCE(SUM(LENGTH(digests)), 0) / {DIGEST} FROM batches WHERE stream = ?", (self.id,)).fetchone()
        keys = np.empty(rows, "<u8")
        batches, starts, at = [], [], 0
        for id_, digests, occurrences in self.run.db.execute(
                "SELECT id, digests, occurrences FROM batches WHERE stream = ? ORDER BY id", (self.id,)):
            short = short_keys(digests)
            n = len(short)
            times = np.zeros(n, np.int64) if occurrences is None else np.frombuffer(occurrences, "<i8")
            keys[at:at + n] = with_occurrence(short, times)
            batches.append(id_)
            starts.append(at)
            at += n
        return Places(keys, np.array(batches, np.int64), np.array(starts, np.int64))

    def batch(self, id_: int) -> tuple[bytes, Tensor]:
        """(digests, answers (n, width)) of one stored batch"""
        if id_ not in self.cache:
            digests, dtype, width, answers = self.run.db.execute(
                "SELECT digests, dtype, width, answers FROM batches WHERE id = ?", (id_,)).fetchone()
            block = torch.frombuffer(bytearray(answers), dtype=getattr(torch, dtype)).reshape(-1, width)
            self.cache[id_] = (digests, block)
            if len(self.cache) > CACHED_BATCHES:
                self.cache.popitem(last=False)
        self.cache.move_to_end(id_)
        return self.cache[id_]

    def known(self, digests: bytes, occurrence: Array) -> tuple[Array, list[tuple[Array, Tensor]]]:
        """(known (n,) bool, [(positions in the query, their answers), ...])"""
        found, batch, row = self.places.find(with_occurrence(short_keys(digests), occurrence))
        parts = []
        for id_ in np.unique(batch[found]):
            stored, block = self.batch(int(id_))
            here = np.flatnonzero(found & (batch == id_))
            # The short key led here; the whole digest decides.
            same = digest_rows(stored)[row[here]] == digest_rows(digests)[here]
            found[here[~same]] = False
            here = here[same]
            parts.append((here, block[torch.from_numpy(row[here].astype(np.int64))]))
        return found, parts

    def keep(self, digests: bytes, occurrence: Array, answers: Tensor) -> None:
        answers = answers.detach().cpu().contiguous()
        times = occurrence.astype("<i8").tobytes() if occurrence.any() else None
        self.run.db.execute(
            "INSERT INTO batches(stream, digests, occurrences, dtype, width, answers) VALUES (?, ?, ?, ?, ?, ?)",
            (self.id, digests, times, str(answers.dtype).removeprefix("torch."), answers.shape[1],
             answers.view(torch.uint8).numpy().data.cast("B")))


def digest_rows(digests: bytes) -> Array:
    return np.frombuffer(digests, dtype=f"V{DIGEST}")


class Transcript(Relay):
    """A source whose answers are kept in a run folder; what the folder knows is not asked again."""

    def __init__(self, source: Source, run: Run, stream: str) -> None:
        super().__init__(source)
        self.run, self.stream = run, run.stream(stream)
        self._width: int | None = None

    @property
    def width(self) -> int | None:
        return self._width or self.source.width

    def answer(self, x: Tensor) -> Tensor:
        if not len(self.stream.places.keys):
            # Nothing was stored before, so nothing can be known: ask at once, and hash while or after it answers.
            answers, kept = self._ask(x, lambda start, end: self._count(x[start:end])[:2])
            self._width = answers.shape[1] if kept and self.kind == "values" else self._width
            return answers
        digests, occurrence, known, parts = self._count(x)
        if known.all():
            block = parts[0][1].new_empty(len(x), parts[0][1].shape[1])
        else:
            new = np.flatnonzero(~known)
            ask, told, times = x, digests, occurrence
            if len(new) < len(x):
                ask, told = x[torch.from_numpy(new)], digest_rows(digests)[new].tobytes()
                times = occurrence[new]
            answers, kept = self._ask(ask, lambda start, end: (told[start * DIGEST:end * DIGEST], times[start:end]))
            if not kept:
                return answers                                      # the oracle says what is wrong with it
            if len(new) == len(x):
                self._width = answers.shape[1] if self.kind == "values" else None
                return answers
            block = answers.new_empty(len(x), answers.shape[1])
            block[torch.from_numpy(new)] = answers.cpu()
        for here, found in parts:
            block[torch.from_numpy(here)] = found
        self._width = block.shape[1] if self.kind == "values" else None
        return block

    def _count(self, x: Tensor) -> tuple[bytes, Array, Array, list[tuple[Array, Tensor]]]:
        """(digests, how often each row was asked before, which are known, the answers of those)"""
        digests = row_digests(x, self.dtype)
        with self.stream.lock:
            occurrence = self.stream.counts.occurrences(short_keys(digests))
            return digests, occurrence, *self.stream.known(digests, occurrence)

    def _ask(self, x: Tensor, keys: Callable[[int, int], tuple[bytes, Array]]) -> tuple[Tensor, bool]:
        """(answers, whether they were kept). Request by request where the source has several: a kill then loses
        only those in flight. `keys` gives the digests and occurrences of rows start to end, each asked for once."""
        source: Any = self.source
        if not hasattr(source, "answer_parts"):
            self.run.about_to_send(len(x))
            answers: Tensor = source.answer(x)
            return answers, self._keep(answers, len(x), *keys(0, len(x)))
        source.on_sent = self.run.about_to_send                     # it counts resends too
        blocks, kept = [], True
        for start, block in source.answer_parts(x):
            end = start + len(block)
            kept &= self._keep(block, end - start, *keys(start, end))
            blocks.append(block)
        return joined(blocks), kept

    def _keep(self, answers: Tensor, rows: int, digests: bytes, occurrence: Array) -> bool:
        good = worth_keeping(answers, rows)
        if good:
            self.stream.keep(digests, occurrence, answers)
        return good


def worth_keeping(answers: Tensor, rows: int) -> bool:
    """A wrong shape or a NaN is not kept: the target may do better when the run is resumed."""
    if not isinstance(answers, Tensor) or answers.ndim != 2 or len(answers) != rows or not answers.numel():
        return False
    return not answers.is_floating_point() or all_finite(answers)


def identity_of(target: Any) -> str:
    """A name for the target that is the same in the next process, and another when its weights or its file change."""
    digest = hashlib.blake2b(digest_size=8)
    if isinstance(target, (str, Path)):
        from foldline.oracles.targets import parse_target
        path = Path(parse_target(str(target))[1].partition("@")[0])
        if not path.is_file():
            return str(target)
        with path.open("rb") as file:
            while part := file.read(2**22):
                digest.update(part)
        return f"{target} {digest.hexdigest()}"
    name = f"{getattr(target, '__module__', '')}.{getattr(target, '__qualname__', type(target).__name__)}"
    if isinstance(target, nn.Module):
        digest.update(repr(target).encode())
        name = type(target).__name__
    for t in tensors_of(target):
        digest.update(f"{t.dtype} {tuple(t.shape)}".encode())
        digest.update(t.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return f"{name} {digest.hexdigest()}"
