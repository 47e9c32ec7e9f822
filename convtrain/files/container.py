"""The container: one file with a kind, a JSON manifest and blobs named by the SHA-256 of their content.

Layout, all integers little-endian::

    0          header, 128 bytes: magic, format version u32, number of blobs u32, kind (16 bytes, NUL-padded),
               file size u64, the manifest's record (64 bytes), zeros
    128        one record of 64 bytes per blob, sorted by hash: SHA-256 of the content (32 bytes), offset u64,
               stored bytes u64, content bytes u64, encoding u32 (0 raw, 1 zstd), zero u32
    …          the manifest (UTF-8 JSON), then every zstd blob, back to back
    n·4096     every raw blob, each on pages of its own (zeros between), for zero-copy through mmap
    size-32    SHA-256 of everything before it

Magic, version and kind keep their places in every future version. The digest at the end covers every byte,
padding included, and is checked when a file is opened; each blob's own hash is checked again before it is used.
The same input gives the same bytes: no dates, no paths, no threads.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import stat
import struct
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import zstandard

from convtrain.errors import InputError
from convtrain.files.atomic import atomic_write
from convtrain.files.kinds import KINDS, wrong_kind

if TYPE_CHECKING:
    from typing_extensions import Self

Data = bytes | bytearray | memoryview

MAGIC = b"\x89CVT\r\n\x1a\n"  # as PNG's: notices transfers that strip bit 7 or translate line ends
VERSION = 1
PAGE = 4096
MAX_PACKED = 64 << 20
"""Longest content, in bytes, that is ever zstd-packed: a reader never allocates more for one blob."""
MAX_MANIFEST = 32 << 20
"""Longest manifest, in bytes of JSON."""

_LEVEL = 6
_WORTHWHILE = 0.9  # pack only what shrinks below this share of its size
_HEADER = struct.Struct("<8sII16sQ64s24s")
_RECORD = struct.Struct("<32sQQQII")
HEADER_BYTES = _HEADER.size
_RAW, _ZSTD = 0, 1
_DIGEST = 32


def sha256(data: Data) -> str:
    """The hexadecimal SHA-256 that names a blob with this content."""
    return hashlib.sha256(data).hexdigest()


@dataclass(frozen=True)
class BlobInfo:
    """Where a blob lies: byte offset, stored and content length in bytes, and whether it is zstd-packed."""

    sha256: str
    offset: int
    stored: int
    size: int
    packed: bool


def write_container(
    path: Path, kind: str, manifest: Mapping[str, Any], blobs: Mapping[str, Data], *, raw: Collection[str] = ()
) -> str:
    """Write a container atomically and return its identity (see :attr:`Container.identity`).

    ``blobs`` maps :func:`sha256` of each content to the content (contiguous bytes). Those named in ``raw``, and those
    that zstd does not shrink, are stored page-aligned as they are. ``manifest`` is strict JSON: no NaN, string keys.

    Raises ValueError for a wrong key, kind or manifest (a bug of the caller), InputError or RunError as
    :func:`convtrain.files.atomic.atomic_write` does.
    """
    if kind not in KINDS:
        raise ValueError(f"container kind {kind!r} is none of {KINDS}")
    if not set(raw) <= set(blobs):
        raise ValueError("raw names a blob that is not there")
    text = json.dumps(manifest, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    if len(text) > MAX_MANIFEST:
        raise InputError(f"Cannot write {path}: its manifest has {len(text)} bytes, more than {MAX_MANIFEST}.")
    views = {name: _flat(blobs[name]) for name in sorted(blobs)}
    for name, view in views.items():
        if sha256(view) != name:
            raise ValueError(f"blob {name} does not have the content it is named after")

    offset = _HEADER.size + _RECORD.size * len(views)
    encoding, stored = _pack(memoryview(text))
    manifest_record = _RECORD.pack(hashlib.sha256(text).digest(), offset, len(stored), len(text), encoding, 0)
    pieces = [(offset, stored)]
    offset += len(stored)

    records: dict[str, bytes] = {}
    aligned: list[str] = []
    for name, view in views.items():
        encoding, stored = (_RAW, view) if name in raw else _pack(view)
        if encoding == _RAW:
            aligned.append(name)
            continue
        records[name] = _RECORD.pack(bytes.fromhex(name), offset, len(stored), len(view), encoding, 0)
        pieces.append((offset, stored))
        offset += len(stored)
    for name in aligned:
        offset = _round_up(offset)
        records[name] = _RECORD.pack(bytes.fromhex(name), offset, len(views[name]), len(views[name]), _RAW, 0)
        pieces.append((offset, views[name]))
        offset += len(views[name])
    if aligned:
        offset = _round_up(offset)

    header = _HEADER.pack(MAGIC, VERSION, len(views), kind.encode(), offset + _DIGEST, manifest_record, b"")
    digest = hashlib.sha256()
    with atomic_write(path) as file:
        for piece in _padded([(0, header), (_HEADER.size, b"".join(records[name] for name in views)), *pieces], offset):
            digest.update(piece)
            file.write(piece)
        end = digest.digest()
        digest.update(end)
        file.write(end)
    return digest.hexdigest()


def open_container(path: Path, kinds: Collection[str] | None = None) -> Container:
    """Open a container and check every byte of it against the digest at its end.

    Raises InputError, in one sentence that says which, for a file that is missing, unreadable, empty, foreign, of
    another format version, cut short, damaged, or of a kind that is not among ``kinds`` (None allows all).
    """
    mapped = _map(path)
    try:
        return _parse(path, mapped, kinds)
    except BaseException:
        _close(mapped)
        raise


def kind_of(header: bytes) -> str | None:
    """The kind that a file's first bytes claim, sound or not; None where it is no resource file."""
    if not header.startswith(MAGIC):
        return None
    _, _, _, kind, *_ = _HEADER.unpack(header.ljust(_HEADER.size, b"\0"))
    return str(kind.rstrip(b"\0").decode("ascii", "replace"))


class Container:
    """An open container; close it or use it as a context manager.

    ``manifest`` is the parsed JSON object. ``identity`` is the hexadecimal SHA-256 of the whole file, what the command
    ``sha256sum`` prints. ``blobs`` describes every blob by its hash.
    """

    def __init__(
        self,
        path: Path,
        kind: str,
        manifest: dict[str, Any],
        identity: str,
        blobs: dict[str, BlobInfo],
        mapped: mmap.mmap,
    ) -> None:
        self.path, self.kind, self.manifest, self.identity, self.blobs = path, kind, manifest, identity, blobs
        self._mapped = mapped

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return len(self._mapped)

    def blob(self, name: str) -> memoryview:
        """The read-only content of the blob with this SHA-256, hash checked.

        A raw blob is a view of the file itself (page-aligned, no copy). Raises InputError for a blob that is missing
        or does not have the content that it is named after.
        """
        if name not in self.blobs:
            raise _damaged(self.path, f"blob {name[:12]}… is missing")
        info = self.blobs[name]
        stored = memoryview(self._mapped)[info.offset : info.offset + info.stored]
        content = memoryview(_unpack(self.path, stored, info.size)) if info.packed else stored
        if sha256(content) != name:
            raise _damaged(self.path, f"blob {name[:12]}… does not have the content it is named after")
        return content

    def close(self) -> None:
        """Release the file. Views that :meth:`blob` gave stay valid and keep the file mapped until they go."""
        _close(self._mapped)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _close(mapped: mmap.mmap) -> None:
    with suppress(BufferError):  # a view is still in use: its end unmaps the file
        mapped.close()


def _flat(data: Data) -> memoryview:
    view = memoryview(data)
    return view.cast("B") if view.nbytes else memoryview(b"")


def _round_up(offset: int) -> int:
    return -(-offset // PAGE) * PAGE


def _pack(view: memoryview) -> tuple[int, Data]:
    """zstd where it helps: (encoding, stored bytes)."""
    if 0 < len(view) <= MAX_PACKED:
        packed = zstandard.ZstdCompressor(level=_LEVEL).compress(view)
        if len(packed) < _WORTHWHILE * len(view):
            return _ZSTD, packed
    return _RAW, view


def _padded(pieces: list[tuple[int, Data]], end: int) -> Iterator[Data]:
    """The pieces in order with zeros in the gaps between them and up to ``end``."""
    position = 0
    for offset, piece in pieces:
        yield bytes(offset - position)
        yield piece
        position = offset + len(piece)
    yield bytes(end - position)


def _map(path: Path) -> mmap.mmap:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a FIFO must not block
    except FileNotFoundError:
        raise InputError(f"No such file: {path}.") from None
    except (OSError, ValueError) as error:
        raise InputError(f"Cannot read {path}: {getattr(error, 'strerror', None) or error}.") from error
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            what = "a folder" if stat.S_ISDIR(status.st_mode) else "not a regular file"
            raise InputError(f"Cannot read {path}: it is {what}.")
        if status.st_size == 0:
            raise InputError(f"{path} is empty. Make it again, or restore it from a copy.")
        return mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise InputError(f"Cannot read {path}: {error.strerror or error}.") from error
    finally:
        os.close(descriptor)


def _parse(path: Path, mapped: mmap.mmap, kinds: Collection[str] | None) -> Container:
    start = mapped[: _HEADER.size]
    if start[: len(MAGIC)] != MAGIC[: len(start)]:
        raise InputError(f"{path} is not a convtrain resource file.")
    if len(start) < _HEADER.size:
        raise _damaged(path, "it is cut short")
    _, version, count, kind_field, size, manifest_record, zeros = _HEADER.unpack(start)
    if version != VERSION:
        raise InputError(
            f"{path} has format version {version}, and this convtrain reads version {VERSION}: "
            "make the file again with this convtrain, or use the one that wrote it."
        )
    if size != len(mapped):
        raise _damaged(path, f"it has {len(mapped)} bytes and should have {size}")

    content = memoryview(mapped)
    try:
        if size < _HEADER.size + _DIGEST:
            raise _damaged(path, "it is cut short")
        digest = hashlib.sha256(content[:-_DIGEST])
        if digest.digest() != content[-_DIGEST:]:
            raise _damaged(path, "its checksum does not match its content")
        digest.update(content[-_DIGEST:])

        # From here on only a file made by another program can be wrong; it still must not do harm.
        kind = kind_field.rstrip(b"\0").decode("ascii", "replace")
        if kind not in KINDS or any(zeros):
            raise InputError(f"{path} is a resource file of an unknown kind: another convtrain wrote it.")
        if kinds is not None and kind not in kinds:
            raise InputError(wrong_kind(path, kind, kinds))
        end = size - _DIGEST
        table = _HEADER.size + count * _RECORD.size
        if table > end:
            raise _damaged(path, "its table of blobs is longer than the file")
        manifest = _manifest(path, content, _record(path, manifest_record, table, end))
        blobs = {}
        for offset in range(_HEADER.size, table, _RECORD.size):
            info = _record(path, content[offset : offset + _RECORD.size], table, end)
            blobs[info.sha256] = info
        return Container(path, kind, manifest, digest.hexdigest(), blobs, mapped)
    finally:
        content.release()


def _record(path: Path, data: Data, start: int, end: int) -> BlobInfo:
    name, offset, stored, size, encoding, zero = _RECORD.unpack(data)
    sound = start <= offset <= end and stored <= end - offset and encoding in (_RAW, _ZSTD) and zero == 0
    if not sound or (encoding == _RAW and size != stored) or (encoding == _ZSTD and size > MAX_PACKED):
        raise _damaged(path, "its table of blobs is inconsistent")
    return BlobInfo(name.hex(), offset, stored, size, encoding == _ZSTD)


def _manifest(path: Path, content: memoryview, info: BlobInfo) -> dict[str, Any]:
    if info.size > MAX_MANIFEST:
        raise _damaged(path, f"its manifest claims {info.size} bytes, more than {MAX_MANIFEST}")
    with content[info.offset : info.offset + info.stored] as stored:
        text = _unpack(path, stored, info.size) if info.packed else bytes(stored)
    try:
        manifest = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        raise _damaged(path, "its manifest is not JSON") from None
    if sha256(text) != info.sha256 or not isinstance(manifest, dict):
        raise _damaged(path, "its manifest is not the one that was written")
    return manifest


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _unpack(path: Path, stored: memoryview, size: int) -> bytes:
    """Undo zstd; allocates ``size`` bytes, which the caller has bounded, and never more."""
    with suppress(zstandard.ZstdError):
        if zstandard.frame_content_size(stored) == size:
            content = zstandard.ZstdDecompressor().decompress(stored)
            if len(content) == size:
                return content
    raise _damaged(path, "a packed part of it cannot be unpacked")


def _damaged(path: Path, why: str) -> InputError:
    return InputError(f"{path} is damaged: {why}. Make it again, or restore it from a copy.")
