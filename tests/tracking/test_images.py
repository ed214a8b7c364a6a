from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ropewalk.tracking.images import image_file

PIL: Any = pytest.importorskip("PIL.Image")


def pixels(image: Any) -> Any:
    content, ending = image_file(image)
    assert ending == ".png"
    with PIL.open(io.BytesIO(content)) as found:
        return np.asarray(found)


@pytest.mark.parametrize("shape", [(2, 3), (2, 3, 3), (2, 3, 4)])
def test_arrays_of_bytes_are_kept_exactly(shape: tuple[int, ...]) -> None:
    array = np.random.default_rng(1).integers(0, 256, shape).astype(np.uint8)
    assert np.array_equal(pixels(array), array)


def test_floats_go_from_black_to_white_and_are_clipped() -> None:
    assert pixels(torch.tensor([[0.0, 0.5, 1.0, 2.0, -1.0, float("nan")]])).tolist() == [[0, 128, 255, 255, 0, 0]]
    assert pixels(np.array([[True, False]])).tolist() == [[255, 0]]
    assert pixels(np.array([[1, 0]])).tolist() == [[255, 0]], "a mask"


def test_one_channel_is_grey() -> None:
    assert pixels(np.ones((2, 3, 1))).shape == (2, 3)


class Figure:
    """What is used of a figure of matplotlib, which takes seconds to import."""

    def savefig(self, file: Any, *, format: str) -> None:
        PIL.new("RGBA", (10, 10)).save(file, format=format)


def test_figures_and_files_and_images_of_pil_are_kept(tmp_path: Path) -> None:
    assert pixels(Figure()).shape[:2] == (10, 10)
    assert pixels(PIL.new("RGB", (3, 2))).shape == (2, 3, 3)
    (tmp_path / "photo.JPG").write_bytes(b"jpeg")
    assert image_file(tmp_path / "photo.JPG") == (b"jpeg", ".jpg")


@pytest.mark.parametrize(
    ("image", "error", "words"),
    [
        (np.ones((3, 4, 5)), ValueError, r"not \(3, 4, 5\); torch's \(channels, height, width\)"),
        (np.ones((0, 5)), ValueError, "shape"),
        # A confusion matrix: everything above 0 was white.
        (np.array([[40, 2], [0, 51]]), ValueError, r"int64 from 0 to 51; .*image / image\.max\(\)"),
        (torch.tensor([[0, 300]]), ValueError, "from 0 to 300"),
        (np.array([[0, -1]], np.int8), ValueError, "from -1 to 0"),
        (3, TypeError, "not int"),
        ("/no/such/file.png", FileNotFoundError, "no/such"),
    ],
)
def test_anything_else_is_refused(image: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        image_file(image)
