"""What is shown as an image, and what is only saved."""

from __future__ import annotations

import pytest

from ropewalk.page.runs.run_files import IMAGE_TYPES, image_type


@pytest.mark.parametrize(
    ("start", "kind"),
    [
        (b"\x89PNG\r\n\x1a\n....", "image/png"),
        (b"\xff\xd8\xff\xe0", "image/jpeg"),
        (b"GIF89a", "image/gif"),
        (b"RIFF....WEBP", "image/webp"),
        (b"<svg xmlns=", ""),
        (b"<html>", ""),
        (b"", ""),
    ],
)
def test_an_image_is_what_begins_as_one(start: bytes, kind: str) -> None:
    assert image_type(start) == kind


def test_no_image_can_hold_a_script() -> None:
    assert "image/svg+xml" not in IMAGE_TYPES
