"""Loading pictures of every kind."""

from __future__ import annotations

import os
import struct
import zlib
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from convtrain.errors import InputError
from cook.image import PACKAGED, display_name, gradient_energy, load_target, read_file


def encoded(image: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    buffer = BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


@pytest.fixture
def picture() -> Image.Image:
    levels = np.random.default_rng(1).integers(0, 256, (20, 30, 3), dtype=np.uint8)
    return Image.fromarray(levels)


def test_the_packaged_photograph() -> None:
    target = load_target(read_file(PACKAGED), "astronaut.png")
    assert target.pixels.shape == (512, 512, 3)
    assert target.pixels.dtype == np.float32
    assert target.notes == ()
    levels = np.asarray(Image.open(PACKAGED))
    assert np.array_equal(target.pixels, levels.astype(np.float32) / np.float32(255))


def test_rgb_is_taken_as_it_is(picture: Image.Image) -> None:
    target = load_target(encoded(picture), "p.png")
    assert (target.height, target.width) == (20, 30)
    assert np.array_equal(np.rint(target.pixels * 255), np.asarray(picture))


def test_greyscale_becomes_three_equal_channels(picture: Image.Image) -> None:
    grey = picture.convert("L")
    target = load_target(encoded(grey), "g.png")
    assert np.array_equal(np.rint(target.pixels * 255), np.repeat(np.asarray(grey)[:, :, None], 3, 2))


def test_one_bit(picture: Image.Image) -> None:
    assert set(np.unique(load_target(encoded(picture.convert("1")), "b.png").pixels)) == {0.0, 1.0}


def test_palette(picture: Image.Image) -> None:
    palette = picture.quantize(16)
    target = load_target(encoded(palette), "p.png")
    assert np.array_equal(np.rint(target.pixels * 255), np.asarray(palette.convert("RGB")))
    assert target.notes == ()


def test_transparency_is_composited_on_white_and_said() -> None:
    image = Image.new("RGBA", (4, 4), (255, 0, 0, 255))
    image.putpixel((0, 0), (0, 0, 0, 0))
    image.putpixel((1, 0), (0, 0, 0, 128))
    target = load_target(encoded(image), "t.png")
    assert target.pixels[0, 0].tolist() == [1, 1, 1]
    assert np.allclose(target.pixels[0, 1], 127 / 255, atol=1 / 255)
    assert target.pixels[1, 1].tolist() == [1, 0, 0]
    assert "white" in target.notes[0]


def test_transparent_palette_and_grey_with_alpha() -> None:
    palette = Image.new("P", (2, 1))
    palette.putpalette([10, 20, 30, 200, 100, 50])
    palette.putpixel((1, 0), 1)
    pixels = load_target(encoded(palette, transparency=0), "p.png").pixels
    assert np.rint(pixels * 255).tolist() == [[[255, 255, 255], [200, 100, 50]]]
    assert load_target(encoded(Image.new("LA", (1, 1), (0, 0))), "la.png").pixels.tolist() == [[[1, 1, 1]]]


def test_cmyk() -> None:
    image = Image.new("CMYK", (8, 8), (0, 255, 255, 0))
    pixels = load_target(encoded(image, "JPEG", quality=100), "c.jpg").pixels
    assert np.allclose(pixels[4, 4], [1, 0, 0], atol=0.03)


def test_sixteen_bit_grey_keeps_its_precision() -> None:
    levels = np.arange(0, 65536, 257 * 3 + 1, dtype=np.uint16)[None, :]
    target = load_target(encoded(Image.fromarray(levels)), "w.png")
    assert np.allclose(target.pixels[0, :, 1], levels[0] / 65535, atol=1e-7)
    shrunk = load_target(encoded(Image.fromarray(np.repeat(levels, 9, 0))), "w.png", longest=20)
    assert shrunk.pixels.shape[1] == 20
    assert not np.allclose(np.rint(shrunk.pixels * 255) / 255, shrunk.pixels, atol=1e-4)


def test_a_transparent_level_of_sixteen_bits_is_white() -> None:
    levels = np.array([[0, 1000, 65535]], np.uint16)
    target = load_target(encoded(Image.fromarray(levels), transparency=1000), "w.png")
    assert target.pixels[0, :, 0].tolist() == [0, 1, 1]
    assert target.notes == ("w.png has transparency: it was composited on white.",)


def test_sixteen_bits_of_colour_are_rounded_and_said() -> None:
    row = zlib.compress(b"\0" + bytes(range(12)))
    head = struct.pack(">IIBBBBB", 2, 1, 16, 2, 0, 0, 0)
    chunks = [
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in ((b"IHDR", head), (b"IDAT", row), (b"IEND", b""))
    ]
    target = load_target(b"\x89PNG\r\n\x1a\n" + b"".join(chunks), "c.png")
    assert target.pixels.shape == (1, 2, 3)
    assert "16 bits" in target.notes[0]


@pytest.mark.parametrize("kind", ["GIF", "PNG", "TIFF"])
def test_of_several_pictures_the_first_is_taken_and_said(picture: Image.Image, kind: str) -> None:
    other = Image.new("RGB", picture.size)
    target = load_target(encoded(picture, kind, save_all=True, append_images=[other]), "a.gif")
    assert target.pixels.max() > 0.5
    assert target.notes == ("a.gif holds 2 pictures: the first was taken.",)


@pytest.mark.parametrize("orientation", [0, 9, 300])
def test_an_orientation_that_does_not_exist_turns_nothing(picture: Image.Image, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    assert load_target(encoded(picture, exif=exif), "r.png").notes == ()


def test_exif_rotation(picture: Image.Image) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was held on its side: turn clockwise to see it upright
    target = load_target(encoded(picture, "PNG", exif=exif), "r.png")
    assert (target.height, target.width) == (30, 20)
    assert np.array_equal(np.rint(target.pixels * 255), np.rot90(np.asarray(picture), -1))
    assert "upright" in target.notes[0]


def test_shrinking_keeps_the_aspect_and_never_enlarges(picture: Image.Image) -> None:
    target = load_target(encoded(picture), "p.png", longest=15)
    assert (target.height, target.width) == (10, 15)
    expected = np.asarray(picture.resize((15, 10), Image.Resampling.LANCZOS))
    assert np.array_equal(np.rint(target.pixels * 255), expected)
    assert "30x20 to 15x10" in target.notes[0]
    assert load_target(encoded(picture), "p.png", longest=128).width == 30
    assert load_target(encoded(Image.new("RGB", (1000, 2))), "line.png", longest=128).height == 1


def test_size_is_exact(picture: Image.Image) -> None:
    target = load_target(encoded(picture), "p.png", size=(7, 40), longest=15)
    assert (target.height, target.width) == (40, 7)
    assert float(target.pixels.min()) >= 0
    assert float(target.pixels.max()) <= 1


@pytest.mark.parametrize(
    "data", [b"", b"hello", b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff\xe0junk", b"GIF89a", b"II*\0\0\0"]
)
def test_what_is_not_an_image(data: bytes) -> None:
    with pytest.raises(InputError, match=r"x\.png is"):
        load_target(data, "x.png")


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "TIFF", "BMP", "WEBP"])
def test_truncated_files(picture: Image.Image, kind: str) -> None:
    data = encoded(picture, kind)
    for keep in (0.2, 0.5, 0.9):
        with pytest.raises(InputError, match=r"x\.png is"):
            load_target(data[: int(keep * len(data))], "x.png")


def test_png_cut_anywhere(picture: Image.Image) -> None:
    data = encoded(picture)
    for keep in (*range(0, 60, 3), *range(len(data) - 16, len(data))):
        with pytest.raises(InputError, match=r"x\.png is"):
            load_target(data[:keep], "x.png")


def test_missing_file_and_folder(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="There is no file"):
        read_file(tmp_path / "nothing.png")
    with pytest.raises(InputError, match="is a folder"):
        read_file(tmp_path)


def test_pipes_and_devices_are_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "f.png")
    for path in (tmp_path / "f.png", Path("/dev/zero")):
        with pytest.raises(InputError, match="not a regular file"):
            read_file(path)


def test_a_name_that_is_not_text_becomes_text() -> None:
    assert display_name(Path("a") / os.fsdecode(b"\xff\xfe\xc3\xa4.png")) == "\ufffd\ufffdä.png"


def test_kinds_without_pixels_are_unsupported_rather_than_damaged(picture: Image.Image) -> None:
    with pytest.raises(InputError, match="EPS, which is not supported"):
        load_target(encoded(picture, "EPS"), "p.eps")


def test_gradient_energy() -> None:
    pixels = np.random.default_rng(0).random((5, 7, 3)).astype(np.float32)
    vertical = np.mean((pixels[1:].astype(float) - pixels[:-1]) ** 2)
    horizontal = np.mean((pixels[:, 1:].astype(float) - pixels[:, :-1]) ** 2)
    assert gradient_energy(pixels) == pytest.approx(vertical + horizontal, rel=1e-12)
    assert gradient_energy(pixels[:1]) == pytest.approx(np.mean(np.diff(pixels[:1].astype(float), axis=1) ** 2))
    assert gradient_energy(pixels[:1, :1]) == 1e-4
    assert gradient_energy(np.full((9, 9, 3), 0.3, np.float32)) == 1e-4
