"""One writer at a time in a training folder, and no lock outlives its process."""

from __future__ import annotations

import re
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from convtrain.errors import InputError, RunError
from convtrain.files.lock import folder_lock
from workspace import environment

HOLDER = """
import sys, time
from pathlib import Path
from convtrain.files.lock import folder_lock
with folder_lock(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_the_lock_is_free_again_afterwards(tmp_path: Path) -> None:
    for _ in range(2):
        with folder_lock(tmp_path), pytest.raises(InputError, match="Another convtrain"), folder_lock(tmp_path):
            pass


def test_an_error_inside_releases_it(tmp_path: Path) -> None:
    with pytest.raises(KeyError), folder_lock(tmp_path):
        raise KeyError
    with folder_lock(tmp_path):
        pass


def test_another_process_is_named_and_its_death_frees_the_folder(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], env=environment(), stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        with (
            pytest.raises(InputError, match=re.escape(f"{tmp_path} (process {holder.pid})")),
            folder_lock(tmp_path),
        ):
            pass
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    with folder_lock(tmp_path):
        pass


def test_folders_are_independent(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    with folder_lock(tmp_path / "a"), folder_lock(tmp_path / "b"):
        pass


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    for folder in (tmp_path / "missing", Path("/proc")):
        with pytest.raises(InputError, match="Cannot write"), folder_lock(folder):
            pass


def test_a_full_disk_names_the_file(tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        with pytest.raises(RunError, match=re.escape(f"{tmp_path / '.lock'}: no space is left")), folder_lock(tmp_path):
            pass
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
