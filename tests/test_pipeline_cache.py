"""The pipeline cache file: helps, is never needed, and nothing foreign or damaged gets into a driver."""

from __future__ import annotations

import logging
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from convtrain.gpu.live.cache import cache_path, pack_cache, unpack_cache
from convtrain.gpu.snapshot import DeviceSnapshot
from convtrain.gpu.switches import Switches
from device_zoo import H200, LAVAPIPE
from toy_gpu import toy_plan

if TYPE_CHECKING:
    from live_device import MakeEngine

pytest_plugins = ("live_device",)

DATA = bytes(range(256)) * 3


def test_what_is_packed_comes_back() -> None:
    assert unpack_cache(H200, pack_cache(H200, DATA)) == DATA
    assert unpack_cache(H200, pack_cache(H200, b"\n\n")) == b"\n\n"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"name": "NVIDIA H100"}, "another device (NVIDIA H100, here NVIDIA H200)"),
        ({"driver_info": "560.1"}, "another driver"),
        ({"driver_version": 2}, "another driver version"),
        ({"pipeline_cache_uuid": "00" * 16}, "another uuid"),
        ({"vendor_id": 1}, "another vendor"),
        ({"device_id": 9}, "another model"),
    ],
    ids=lambda value: str(value)[:24],
)
def test_another_devices_file_is_refused(change: dict[str, object], words: str) -> None:
    other = replace(H200, **change)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="written for another") as caught:
        unpack_cache(H200, pack_cache(other, DATA))
    assert words in str(caught.value)


def test_every_flipped_byte_is_noticed() -> None:
    content = pack_cache(LAVAPIPE, DATA)
    for position in range(len(content)):
        damaged = bytearray(content)
        damaged[position] ^= 1
        with pytest.raises(ValueError, match=r"damaged|written for another"):
            unpack_cache(LAVAPIPE, bytes(damaged))


@pytest.mark.parametrize(
    "content", [b"", b"\n", b"[]\n", b"{}\n", b"null\nabc", b"\xff\xfe\n", b"[" * 100_000 + b"\n"], ids=len
)
def test_foreign_files_are_refused(content: bytes) -> None:
    with pytest.raises(ValueError, match=r"damaged|written for another"):
        unpack_cache(LAVAPIPE, content)


def test_every_truncation_is_noticed() -> None:
    content = pack_cache(LAVAPIPE, DATA)
    for length in range(len(content)):
        with pytest.raises(ValueError, match=r"damaged|written for another"):
            unpack_cache(LAVAPIPE, content[:length])


def test_devices_have_files_of_their_own() -> None:
    assert cache_path(Path("a"), H200) != cache_path(Path("a"), LAVAPIPE)


def build(make_engine: MakeEngine, folder: Path | None, switches: Switches = Switches()) -> bool:  # noqa: B008
    """Run an engine, and return whether it had something compiled."""
    engine = make_engine(toy_plan(), switches, cache_dir=folder)
    engine.run((0, 1, 2))
    assert engine.host("loss")[1] == 1
    engine.close()
    return engine.compiled


def test_the_file_is_written_read_and_kept(
    make_engine: MakeEngine, device: DeviceSnapshot, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "made" / "on demand"
    assert build(make_engine, folder)
    file = cache_path(folder, device)
    assert unpack_cache(device, file.read_bytes())
    assert [path.name for path in folder.iterdir()] == [file.name]
    with caplog.at_level(logging.WARNING):
        assert not build(make_engine, folder)
    assert caplog.text == ""
    file.unlink()
    assert build(make_engine, folder)
    assert file.exists()
    file.unlink()
    os.mkfifo(file)
    build(make_engine, folder)
    assert file.is_file()


@pytest.mark.parametrize("damage", ["flip", "truncate", "foreign"])
def test_a_refused_file_is_said_and_replaced(
    make_engine: MakeEngine, device: DeviceSnapshot, tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    build(make_engine, tmp_path)
    file = cache_path(tmp_path, device)
    content = bytearray(file.read_bytes())
    if damage == "flip":
        content[-1] ^= 0x40
    elif damage == "truncate":
        del content[-5:]
    else:
        content[:] = pack_cache(replace(device, driver_version=device.driver_version + 1), DATA)
    file.write_bytes(content)
    with caplog.at_level(logging.WARNING):
        build(make_engine, tmp_path)
    assert "is not used: it" in caplog.text
    assert str(file) in caplog.text
    assert unpack_cache(device, file.read_bytes())


def test_a_folder_that_cannot_be_written_is_only_said(
    make_engine: MakeEngine, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    blocked = tmp_path / "a file"
    blocked.write_text("")
    with caplog.at_level(logging.WARNING):
        build(make_engine, blocked / "folder")
    assert "could not be written" in caplog.text


def test_the_switch_keeps_the_disk_clean(make_engine: MakeEngine, tmp_path: Path) -> None:
    assert build(make_engine, tmp_path, Switches(no_pipeline_cache=True))
    build(make_engine, None)
    assert list(tmp_path.iterdir()) == []
