"""Whole-file replacement: the old content or the new, whatever happens in between."""

from __future__ import annotations

import errno
import os
import re
import resource
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from convtrain.errors import InputError, RunError
from convtrain.files.atomic import atomic_write, ensure_folder, write_bytes
from workspace import environment


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_replaces_the_file_and_leaves_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    write_bytes(path, b"old")
    write_bytes(path, b"new")
    assert path.read_bytes() == b"new"
    assert names(tmp_path) == ["a.bin"]


def test_the_old_file_is_there_until_the_block_ends(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    write_bytes(path, b"old")
    with atomic_write(path) as file:
        file.write(b"half")
        file.flush()
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"half"


def test_a_failing_block_keeps_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    write_bytes(path, b"old")

    def interrupted() -> None:
        with atomic_write(path) as file:
            file.write(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["a.bin"]


def test_permissions_follow_the_umask(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    before = os.umask(0o027)
    try:
        write_bytes(path, b"x")
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_a_symbolic_link_stays_one(tmp_path: Path) -> None:
    real, link = tmp_path / "far" / "real.bin", tmp_path / "link.bin"
    real.parent.mkdir()
    link.symlink_to(real)
    write_bytes(link, b"x")
    assert link.is_symlink()
    assert real.read_bytes() == b"x"


def test_a_name_of_the_longest_length_works(tmp_path: Path) -> None:
    path = tmp_path / ("x" * 251 + ".bin")
    write_bytes(path, b"x")
    assert path.read_bytes() == b"x"


@pytest.mark.parametrize("target", ["", "pipe", "missing/a.bin", "plain/a.bin", "x" * 256])
def test_places_that_cannot_be_written_are_the_users_mistake(tmp_path: Path, target: str) -> None:
    (tmp_path / "plain").write_bytes(b"x")
    os.mkfifo(tmp_path / "pipe")
    before = names(tmp_path)
    with pytest.raises(InputError, match="Cannot write"):
        write_bytes(tmp_path / target, b"x")
    assert names(tmp_path) == before


def test_devices_are_not_replaced() -> None:
    with pytest.raises(InputError, match="not a regular file"):
        write_bytes(Path(os.devnull), b"x")
    assert stat.S_ISCHR(os.stat(os.devnull).st_mode)


@pytest.mark.parametrize("step", ["write", "fsync", "replace"])
@pytest.mark.parametrize(("code", "kind"), [(errno.ENOSPC, RunError), (errno.EIO, RunError), (errno.EROFS, InputError)])
def test_a_failure_at_any_step_keeps_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, code: int, kind: type[Exception]
) -> None:
    path = tmp_path / "a.bin"
    write_bytes(path, b"old")

    def fail(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    def replace() -> None:
        with atomic_write(path) as file:
            file.write(b"new")
            if step == "write":
                fail()

    if step != "write":
        monkeypatch.setattr(os, step, fail)
    with pytest.raises(kind, match=re.escape(str(path))):
        replace()
    monkeypatch.undo()
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["a.bin"]


def test_a_full_disk_keeps_the_old_file(tmp_path: Path) -> None:
    """A real one where a small file system can be mounted, else a limit on the file size, which fails alike."""
    mounted = not subprocess.call(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(tmp_path)], stderr=subprocess.DEVNULL
    )
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        path = tmp_path / "a.bin"
        write_bytes(path, b"old")
        if not mounted:
            resource.setrlimit(resource.RLIMIT_FSIZE, (65536, limits[1]))
        with pytest.raises(RunError, match="no space is left"):
            write_bytes(path, bytes(1 << 20))
        assert path.read_bytes() == b"old"
        assert names(tmp_path) == ["a.bin"]
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        if mounted:
            subprocess.check_call(["umount", str(tmp_path)])


WRITER = """
import sys
from pathlib import Path
from convtrain.files.container import sha256, write_container
print("ready", flush=True)
n = 0
while True:
    n += 1
    content = bytes([n % 251]) * 2_000_000 + str(n).encode()
    write_container(Path(sys.argv[1]), "checkpoint", {"n": n}, {sha256(content): content}, raw=[sha256(content)])
"""


def test_a_writer_killed_at_any_moment_leaves_a_whole_file(tmp_path: Path) -> None:
    from convtrain.files.container import open_container

    path = tmp_path / "checkpoint.res"
    for attempt in range(12):
        with subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path)], env=environment(), stdout=subprocess.PIPE
        ) as writer:
            assert writer.stdout is not None
            writer.stdout.readline()
            time.sleep(0.05 + 0.0137 * attempt)
            writer.send_signal(signal.SIGKILL)
        if path.exists():
            with open_container(path) as container:
                (blob,) = container.blobs
                assert bytes(container.blob(blob)).endswith(str(container.manifest["n"]).encode())
        assert len(names(tmp_path)) <= 2  # the file, and at most the last victim's temporary
    assert path.exists()
    write_bytes(path, b"next")
    assert names(tmp_path) == [path.name]


def test_temporaries_of_living_writers_and_other_files_stay(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    for name in (".a.bin.note.tmp", ".a.bin.01234567.bak", ".b.bin.01234567.tmp"):
        (tmp_path / name).write_bytes(b"mine")
    (tmp_path / ".a.bin.01234567.tmp").write_bytes(b"left over")
    with atomic_write(path) as slow:
        slow.write(b"slow")
        write_bytes(path, b"fast")
    assert path.read_bytes() == b"slow"
    assert names(tmp_path) == [".a.bin.01234567.bak", ".a.bin.note.tmp", ".b.bin.01234567.tmp", "a.bin"]


def test_ensure_folder(tmp_path: Path) -> None:
    ensure_folder(tmp_path / "a" / "b")
    ensure_folder(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(InputError, match="is a file"):
        ensure_folder(tmp_path / "file")
    with pytest.raises(InputError, match="Cannot write"):
        ensure_folder(tmp_path / "file" / "below")
    with pytest.raises(InputError, match="Cannot write"):
        ensure_folder(Path("/proc/nothing/here"))
