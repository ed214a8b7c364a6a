"""Routes with files of runs: images as images, and everything else to save.

    GET /files/RUN/NUMBER            the artifact with this number, to save
    GET /files/RUN/NUMBER?inline=1   the same if its first bytes are those of an image, to show
    GET /output/RUN/ATTEMPT          the output of an attempt, to save

SVG and HTML can hold scripts, which would act as the visitor, so they are only saved. What a file begins with says
whether it is an image, and not its name.

A record of an artifact comes from the process that worked on the run, perhaps on another host, and names a path here.
So readers get only what is in the folder of the run, and owners, whose files these are, what it names elsewhere.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO
from urllib.parse import quote

from fastapi import Response
from nicegui import app
from starlette.requests import Request
from starlette.responses import StreamingResponse

from ropewalk.page.gate import ROLE
from ropewalk.page.runs.store_reader import StoreReader, StoreUnreadable
from ropewalk.tracking.kept_output import output_files

if TYPE_CHECKING:  # stores need an extra
    from ropewalk.tracking.store.store import RunStore

_CHUNK_BYTES = 1 << 18
_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_IMAGES = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF8": "image/gif",
    b"BM": "image/bmp",
}
"""Media types by what the files begin with; scripts are in none of them."""
IMAGE_TYPES = frozenset((*_IMAGES.values(), "image/webp"))
"""Media types of images that are shown."""
_HEADERS = {
    "Cache-Control": "private, max-age=60",
    "Content-Security-Policy": "default-src 'none'; sandbox",
}


def add_file_routes(reader: StoreReader) -> None:
    """Serve files of runs.

    Args:
        reader: reads the store.
    """

    @app.get("/files/{run}/{number}")
    async def artifact(request: Request, run: str, number: int) -> Response:  # pyright: ignore[reportUnusedFunction]
        def find(store: RunStore) -> tuple[BinaryIO, str]:
            row = store.run(run)
            found = store.artifacts(row.id)
            if not 0 <= number < len(found):
                raise FileNotFoundError(f"run {run} has no artifact with number {number}")
            within = None if request.scope.get(ROLE) == "owner" else Path(row.folder or store.folder / row.id)
            return _opened(store, found[number].path, within), found[number].name

        return await _answer(reader, find, request.query_params.get("inline") == "1")

    @app.get("/output/{run}/{attempt}")
    async def output(run: str, attempt: int) -> Response:  # pyright: ignore[reportUnusedFunction]
        def find(store: RunStore) -> tuple[BinaryIO, str]:
            path = dict(output_files(store.run(run).folder)).get(attempt)
            if path is None:
                raise FileNotFoundError(f"run {run} has no output of attempt {attempt}")
            return _opened(store, str(path)), f"{run}-{attempt}.txt"

        return await _answer(reader, find, is_inline=False)


async def _answer(reader: StoreReader, find: object, is_inline: bool) -> Response:
    def open_it(store: RunStore) -> tuple[BinaryIO, str] | OSError:
        try:
            return find(store)  # type: ignore[operator]
        except OSError as error:
            return error

    try:
        found = await reader.read(open_it)
    except StoreUnreadable as error:
        return Response(str(error), 404, _HEADERS, "text/plain; charset=utf-8")
    if isinstance(found, OSError):
        return Response(f"the file cannot be read: {found}", 404, _HEADERS, "text/plain; charset=utf-8")
    file, name = found
    media_type = image_type(os.pread(file.fileno(), 16, 0)) if is_inline else ""
    headers = dict(_HEADERS)
    if not media_type:
        headers["Content-Disposition"] = f"attachment; filename*=UTF-8''{quote(Path(name).name, safe='')}"
    return StreamingResponse(_content(file), 200, headers, media_type or "application/octet-stream")


def image_type(start: bytes) -> str:
    """Return the media type of an image by its first bytes; "" for what is none."""
    if start[:4] == b"RIFF" and start[8:12] == b"WEBP":
        return "image/webp"
    return next((kind for magic, kind in _IMAGES.items() if start.startswith(magic)), "")


def _opened(store: RunStore, path: str, within: Path | None = None) -> BinaryIO:
    """Open a file that belongs to a run.

    An object, which is closed if the visitor leaves before anything is sent, and not a descriptor, which would stay.

    Args:
        store: the store of the run.
        path: path of the file.
        within: the folder in which it has to be; None: anywhere.

    Raises:
        OSError: it cannot be opened, is no file, is not in that folder, or is not in the folder of runs although a
            database names it, in which others may have written.
    """
    place, runs = Path(path).resolve(), store.folder.resolve() if "://" in store.where else None
    if runs and not place.is_relative_to(runs):
        raise PermissionError(f"{path} is not in the folder of runs {store.folder}, and a database names it")
    if within and not place.is_relative_to(within.resolve()):
        raise PermissionError(f"{path} is not in the folder of its run, so only an owner may save it")
    if folder := within.resolve() if within else runs:
        descriptor = _opened_below(folder, place.relative_to(folder).parts)
    else:
        descriptor = os.open(path, _FLAGS)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise PermissionError(f"{path} is not a file")
    return open(descriptor, "rb", buffering=0)


def _opened_below(folder: Path, names: tuple[str, ...]) -> int:
    """Open a file without following any link below a folder, in which others may replace what was looked at."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    for name in names:
        above = descriptor
        try:
            descriptor = os.open(name, _FLAGS, dir_fd=above)
        finally:
            os.close(above)
    return descriptor


def _content(file: BinaryIO) -> Iterator[bytes]:
    with file:
        while chunk := file.read(_CHUNK_BYTES):
            yield chunk


__all__ = ["IMAGE_TYPES", "add_file_routes", "image_type"]
