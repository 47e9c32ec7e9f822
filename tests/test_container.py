"""The container format: what is written is read, and nothing else is ever taken for it."""

from __future__ import annotations

import hashlib
import os
import random
import struct
import sys
import tracemalloc
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard

from convtrain.errors import InputError
from convtrain.files.container import MAX_PACKED, PAGE, open_container, sha256, write_container
from privileges import bound_by_permissions

TEXT = b"the same words again and again, " * 60
NOISE = random.Random(0).randbytes(300)
MANIFEST = {"config": {"height": 3}, "Größe": [1, 2.5, None, True]}
HEADER, RECORD, DIGEST = 128, 64, 32


def by_hash(*contents: bytes) -> dict[str, bytes]:
    return {sha256(content): content for content in contents}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A small container: one packed blob, one that does not shrink, an empty one."""
    path = tmp_path / "a.res"
    write_container(path, "training", MANIFEST, by_hash(TEXT, NOISE, b""))
    return path


def reseal(data: bytes | bytearray) -> bytes:
    """The file with the right digest at its end again: what a malicious writer would make."""
    return bytes(data[:-DIGEST]) + hashlib.sha256(data[:-DIGEST]).digest()


def refused(path: Path, data: bytes, reason: str | None = None) -> None:
    path.write_bytes(data)
    with pytest.raises(InputError, match=reason):
        open_container(path)


def test_round_trip(path: Path) -> None:
    with open_container(path, ["training"]) as container:
        assert container.kind == "training"
        assert container.manifest == MANIFEST
        assert list(container.manifest) == list(MANIFEST)
        assert container.identity == sha256(path.read_bytes())
        assert set(container.blobs) == set(by_hash(TEXT, NOISE, b""))
        for name, content in by_hash(TEXT, NOISE, b"").items():
            assert container.blob(name) == content
            assert container.blob(name).readonly
        assert container.blobs[sha256(TEXT)].packed
        assert container.blobs[sha256(TEXT)].stored < 100


def test_no_blobs_and_an_empty_manifest(tmp_path: Path) -> None:
    identity = write_container(tmp_path / "a.res", "model", {}, {})
    with open_container(tmp_path / "a.res") as container:
        assert (container.manifest, container.blobs, container.identity) == ({}, {}, identity)


def test_raw_blobs_lie_alone_on_their_pages(tmp_path: Path) -> None:
    path = tmp_path / "a.res"
    blobs = by_hash(TEXT, NOISE, bytes(PAGE), b"short")
    write_container(path, "checkpoint", {}, blobs, raw=blobs)
    pages: set[int] = set()
    with open_container(path) as container:
        for name, info in container.blobs.items():
            assert not info.packed
            assert info.offset % PAGE == 0
            view = np.frombuffer(container.blob(name), np.uint8)
            assert view.__array_interface__["data"][0] % PAGE == 0  # a view of the mapped file
            mine = set(range(info.offset // PAGE, -(-(info.offset + info.stored) // PAGE)))
            assert not mine & pages
            pages |= mine
        assert container.size % PAGE == DIGEST


def test_views_outlive_the_container(path: Path) -> None:
    container = open_container(path)
    view = container.blob(sha256(NOISE))
    container.close()
    assert view == NOISE


def test_an_old_file_stays_readable_while_it_is_replaced(path: Path) -> None:
    with open_container(path) as container:
        write_container(path, "training", {}, {})
        assert container.blob(sha256(TEXT)) == TEXT


def test_bytes_depend_on_content_alone(tmp_path: Path) -> None:
    blobs = by_hash(TEXT, NOISE, b"", bytes(9000))
    (tmp_path / "elsewhere").mkdir()
    first, second = tmp_path / "a.res", tmp_path / "elsewhere" / "b.res"
    one = write_container(first, "training", MANIFEST, blobs, raw=list(blobs)[:2])
    backwards: Mapping[str, Any] = {name: bytearray(blobs[name]) for name in reversed(blobs)}
    two = write_container(second, "training", MANIFEST, backwards, raw=set(list(blobs)[:2]))
    assert first.read_bytes() == second.read_bytes()
    assert one == two


def test_content_may_be_any_contiguous_buffer(tmp_path: Path) -> None:
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    write_container(tmp_path / "a.res", "training", {}, {sha256(array.data): array.data, sha256(b""): memoryview(b"")})
    with open_container(tmp_path / "a.res") as container:
        assert container.blob(sha256(array.tobytes())) == array.tobytes()


@pytest.mark.parametrize(
    "arguments",
    [
        ("other", {}, {}, ()),
        ("model", {"psnr": float("nan")}, {}, ()),
        ("model", {}, {"0" * 64: b"x"}, ()),
        ("model", {}, {}, ("0" * 64,)),
    ],
    ids=["kind", "NaN", "wrong hash", "unknown raw"],
)
def test_the_writer_refuses_nonsense(tmp_path: Path, arguments: tuple[str, Any, Any, Any]) -> None:
    kind, manifest, blobs, raw = arguments
    with pytest.raises(ValueError, match=r"kind|JSON|content|raw"):
        write_container(tmp_path / "a.res", kind, manifest, blobs, raw=raw)
    assert not list(tmp_path.iterdir())


def test_every_flipped_byte_is_noticed(path: Path, tmp_path: Path) -> None:
    """Every byte that says something, and every seventh of the zeros between."""
    data = path.read_bytes()
    bad = tmp_path / "bad.res"
    places = [place for place, byte in enumerate(data) if byte or place < 600 or place % 7 == 0]
    for place in places:
        flipped = bytearray(data)
        flipped[place] ^= 1 << place % 8
        bad.write_bytes(flipped)
        with pytest.raises(InputError):
            open_container(bad)


def test_every_truncation_is_noticed(path: Path, tmp_path: Path) -> None:
    data = path.read_bytes()
    bad = tmp_path / "bad.res"
    for length in [*range(600), *range(600, len(data), 7), *range(len(data) - DIGEST - 2, len(data))]:
        bad.write_bytes(data[:length])
        with pytest.raises(InputError):
            open_container(bad)
    refused(bad, data + b"\0", "damaged: it has")
    refused(bad, data + data, "damaged: it has")


def test_the_sentence_says_what_is_wrong(path: Path, tmp_path: Path) -> None:
    data = path.read_bytes()
    bad = tmp_path / "bad.res"
    refused(bad, b"", "is empty")
    refused(bad, b"\x89PNG\r\n\x1a\n" + bytes(200), "not a convtrain resource file")
    refused(bad, b"hello", "not a convtrain resource file")
    refused(bad, data[:5], "cut short")
    refused(bad, data[:-1], "should have")
    refused(bad, data[:200] + b"!" + data[201:], "checksum")
    refused(bad, data.replace(b"\r\n", b"\n"), "not a convtrain resource file")  # a transfer in text mode
    newer = reseal(data[:8] + struct.pack("<I", 2) + data[12:])
    refused(bad, newer, "format version 2, and this convtrain reads version 1")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name, reason in {
        "missing.res": "No such file",
        "pipe": "not a regular file",
        "": "it is a folder",
        "x" * 300: "Cannot read",
        "nul\0": "Cannot read",
    }.items():
        with pytest.raises(InputError, match=reason):
            open_container(tmp_path / name)
    with pytest.raises(InputError, match="not a regular file"):
        open_container(Path("/dev/zero"))


def test_a_file_without_permission(path: Path) -> None:
    path.chmod(0)
    with bound_by_permissions(), pytest.raises(InputError, match=r"Cannot read.*Permission denied"):
        open_container(path)


@pytest.mark.parametrize(
    ("found", "wanted", "advice"),
    [
        ("model", "training", "convtrain render"),
        ("training", "model", "convtrain run"),
        ("checkpoint", "model", "convtrain run 0"),
        ("checkpoint", "training", "train.res"),
    ],
)
def test_a_wrong_kind_comes_with_advice(tmp_path: Path, found: str, wanted: str, advice: str) -> None:
    write_container(tmp_path / "a.res", found, {}, {})
    with pytest.raises(InputError, match=f"needed here.*{advice}"):
        open_container(tmp_path / "a.res", [wanted])


# What follows has a valid digest: only another program could have written it. It must do no harm.


def patched(data: bytes, offset: int, fmt: str, *values: Any) -> bytes:
    changed = bytearray(data)
    struct.pack_into(fmt, changed, offset, *values)
    return reseal(changed)


MANIFEST_RECORD = 40  # offset of the manifest's record in the header; in a record: +32 offset, +40 stored, +48 size
HOSTILE: dict[str, Callable[[bytes], bytes]] = {
    "unknown kind": lambda data: patched(data, 16, "16s", b"recipe"),
    "kind that is not text": lambda data: patched(data, 16, "16s", b"\xff" * 16),
    "header's zeros used": lambda data: patched(data, 110, "B", 1),
    "four thousand million blobs": lambda data: patched(data, 12, "<I", 0xFFFFFFFF),
    "no room for the table": lambda data: patched(data, 12, "<I", len(data) // RECORD),
    "manifest outside the file": lambda data: patched(data, MANIFEST_RECORD + 32, "<Q", 1 << 63),
    "manifest in the header": lambda data: patched(data, MANIFEST_RECORD + 32, "<Q", 0),
    "manifest longer than the file": lambda data: patched(data, MANIFEST_RECORD + 40, "<Q", 1 << 40),
    "manifest of a terabyte": lambda data: patched(data, MANIFEST_RECORD + 48, "<Q", 1 << 40),
    "manifest with another hash": lambda data: patched(data, MANIFEST_RECORD, "B", 0),
    "unknown encoding": lambda data: patched(data, HEADER + 56, "<I", 2),
    "blob outside the file": lambda data: patched(data, HEADER + 32, "<Q", len(data)),
    "blob beyond 64 bits": lambda data: patched(data, HEADER + 32, "<QQ", 2**64 - 1, 2**64 - 1),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_headers_are_refused(path: Path, tmp_path: Path, name: str) -> None:
    refused(tmp_path / "bad.res", HOSTILE[name](path.read_bytes()))


def crafted(text: bytes, *, encoding: int = 0, size: int | None = None) -> bytes:
    """A container without blobs around these stored manifest bytes."""
    size = len(text) if size is None else size
    record = struct.pack("<32sQQQII", hashlib.sha256(text).digest(), HEADER, len(text), size, encoding, 0)
    header = struct.pack("<8sII16sQ", b"\x89CVT\r\n\x1a\n", 1, 0, b"model", HEADER + len(text) + DIGEST)
    return reseal(header + record + bytes(24) + text + bytes(DIGEST))


def test_crafted_is_right(tmp_path: Path) -> None:
    (tmp_path / "a.res").write_bytes(crafted(b'{"a": 1}'))
    assert open_container(tmp_path / "a.res").manifest == {"a": 1}


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[1]",
        b'"text"',
        b'{"a": NaN}',
        b'{"a": 1',
        b"\xff\xfe{}",
        b'{"a": "\xff"}',
        b"[" * 500_000,
        b'{"a":' * 200_000,
        b'{"a": ' + b"9" * 200_000 + b"}",
    ],
    ids=["empty", "list", "text", "NaN", "cut", "UTF-16", "not UTF-8", "deep list", "deep object", "long number"],
)
def test_hostile_manifests_are_refused(tmp_path: Path, text: bytes) -> None:
    if text.startswith(b'{"a": 9') and sys.version_info < (3, 11):
        pytest.skip("this Python reads numbers of any length")
    refused(tmp_path / "bad.res", crafted(text), "manifest")


def test_bombs_are_not_unpacked(path: Path, tmp_path: Path) -> None:
    bomb = zstandard.ZstdCompressor().compress(bytes(512 << 20))
    streamed = zstandard.ZstdCompressor(write_content_size=False).compress(b"{}")
    tracemalloc.start()
    try:
        refused(tmp_path / "bad.res", crafted(bomb, encoding=1, size=512 << 20))
        refused(tmp_path / "bad.res", crafted(bomb, encoding=1, size=1000), "unpacked")
        refused(tmp_path / "bad.res", crafted(streamed, encoding=1, size=2), "unpacked")
        refused(tmp_path / "bad.res", crafted(b"no zstd at all", encoding=1, size=2), "unpacked")
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


def test_a_blob_with_other_content_is_refused_before_use(path: Path, tmp_path: Path) -> None:
    data = bytearray(path.read_bytes())
    with open_container(path) as container:
        raw, packed = container.blobs[sha256(NOISE)], container.blobs[sha256(TEXT)]
    data[raw.offset] ^= 1
    data[packed.offset + packed.stored - 1] ^= 1
    bad = tmp_path / "bad.res"
    bad.write_bytes(reseal(data))
    with open_container(bad) as container:
        for name in (sha256(NOISE), sha256(TEXT), sha256(b"never written")):
            with pytest.raises(InputError, match="damaged"):
                container.blob(name)


def test_packed_blobs_have_a_longest_length(path: Path, tmp_path: Path) -> None:
    data = path.read_bytes()
    with open_container(path) as container:
        place = sorted(container.blobs).index(sha256(TEXT))
    refused(tmp_path / "bad.res", patched(data, HEADER + RECORD * place + 48, "<Q", MAX_PACKED + 1), "inconsistent")


def test_random_damage_with_a_valid_digest_does_no_harm(path: Path, tmp_path: Path) -> None:
    """Open either works or says why not; so does every blob. Nothing else is ever raised."""
    data = path.read_bytes()
    chance = random.Random(1)
    bad = tmp_path / "bad.res"
    opened = 0
    for _ in range(1500):
        changed = bytearray(data)
        for _ in range(chance.randint(1, 4)):
            place = chance.randrange(8, HEADER + 5 * RECORD)
            changed[place] = chance.choice([0, 1, 0x7F, 0xFF, chance.randrange(256)])
        bad.write_bytes(reseal(changed))
        try:
            with open_container(bad) as container:
                opened += 1
                for name in container.blobs:
                    container.blob(name)
        except InputError:
            pass
    assert opened  # else the loop only tested the header


def test_random_bytes_are_no_container(tmp_path: Path) -> None:
    chance = random.Random(2)
    for _ in range(200):
        refused(tmp_path / "bad.res", chance.randbytes(chance.randint(1, 400)))
        refused(tmp_path / "bad.res", b"\x89CVT\r\n\x1a\n\1\0\0\0" + chance.randbytes(chance.randint(0, 400)))
