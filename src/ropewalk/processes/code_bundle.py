"""The user's code for other hosts: a project folder as one content-addressed block of bytes.

    launcher                                            host
    find_project ─▶ make_bundle ──── CodeBundle.data ──▶ unpack ─▶ <folder>/<id>/...
                        │                                   │
                     root ───────── travels beside ──────▶ remap, remap_paths

A bundle is a compressed tar archive without times and owners, so that equal code has an equal id, and a host unpacks it
once. The reader trusts nothing: it accepts files, folders and links that stay inside, checks every name and counts
every byte, and a folder appears whole or not at all. It reads the headers itself, because `tarfile` holds long names in
memory whatever their size, and its filters came only with Python 3.11.4 and had holes (such as CVE-2025-4517).
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import sys
import tarfile
import time
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from ropewalk.atomic_files import StagedFolder, open_new_file, remove_left
from ropewalk.errors import CodeRefused
from ropewalk.processes.project_files import (
    IGNORE_FILE,
    MAX_FILES,
    Listing,
    Project,
    ProjectEntry,
    find_project,
    list_files,
    unreadable,
)
from ropewalk.trusted_files import make_folder

__all__ = ["CodeBundle", "Project", "find_project", "make_bundle", "remap", "remap_paths", "unpack"]

UNPACK_LIMIT_BYTES = 4 << 30
"""A host unpacks no more than this, whatever it is sent."""
_BLOCK = 512
_END = bytes(2 * _BLOCK)
_PIECE = 1 << 20
_INPUT_BYTES = 1 << 16
_MAX_NAME_BYTES = 8192
"""Longer than any path of Linux (4096)."""
_MAX_PATH_BYTES, _MAX_PART_BYTES = 3500, 255
"""Limits of Linux, less the folder into which a bundle is unpacked."""
_ENCODING = ("utf-8", "surrogateescape")  # file names are bytes; this encoding loses none
_SETTLED_S = 2.0
"""A file that changed less than this many seconds ago may change again without a new time stamp (FAT has steps of two
seconds)."""
_NUM_SHOWN = 8


@dataclass(frozen=True, slots=True)
class CodeBundle:
    """The code of a project, ready to be sent."""

    id: str
    """SHA-256 of the data, in hexadecimal digits."""
    data: bytes
    root: str
    """The project's folder on this machine; `remap` takes it."""
    size_bytes: int
    """Size of all files, unpacked, in bytes."""
    left_out: tuple[str, ...] = ()
    """Files that could not be included, with the reason."""


_last: tuple[Project, Listing, CodeBundle] | None = None
"""The last bundle of this process, with what it was made from: programs of one script share it."""


def make_bundle(project: Project, limit_bytes: int) -> CodeBundle:
    """Pack the code of a project; returns the last bundle again if no file has changed since.

    Args:
        project: see `find_project`.
        limit_bytes: the most bytes that its files may have together; the setting `code_limit`.

    Raises:
        CodeRefused: the project is too large or cannot be read; names the files, and what to do.
    """
    global _last
    listing = list_files(project)
    size_bytes = sum(entry.size_bytes for entry in listing.entries)
    if size_bytes > limit_bytes:
        raise _too_large(project, listing.entries, size_bytes, limit_bytes)
    if _last is not None and _last[:2] == (project, listing):
        return _last[2]
    data = _pack(project.root, listing.entries)
    bundle = CodeBundle(hashlib.sha256(data).hexdigest(), data, str(project.root), size_bytes, listing.left_out)
    latest_ns = max((max(entry.changed_ns[:2]) for entry in listing.entries), default=0)
    _last = (project, listing, bundle) if latest_ns < time.time_ns() - _SETTLED_S * 1e9 else None
    return bundle


def _too_large(project: Project, entries: Iterable[ProjectEntry], size_bytes: int, limit_bytes: int) -> CodeRefused:
    files = sorted((entry for entry in entries if not stat.S_ISDIR(entry.mode)), key=lambda entry: -entry.size_bytes)
    # Files that make no difference are left out, but at least one is shown.
    large = [entry for entry in files[:_NUM_SHOWN] if 100 * entry.size_bytes >= limit_bytes] or files[:1]
    largest = ", ".join(f"{entry.path} {_shown(entry.size_bytes)}" for entry in large)
    ignore_file = project.root / IGNORE_FILE
    replaces = "" if ignore_file.exists() or not (project.root / ".gitignore").exists() else ", in place of .gitignore"
    return CodeRefused(
        f"the code of the project {project.root} has {_shown(size_bytes)} in {len(files)} files, more than the setting "
        f"code_limit of {_shown(limit_bytes)}. The largest: {largest}. Name what is not code in {ignore_file} (one "
        f'pattern in each line, as in .gitignore{replaces}), set code = "shared" if all hosts see this folder, or '
        "raise code_limit"
    )


def _shown(size_bytes: int) -> str:
    for unit, length in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if size_bytes >= length:
            return f"{size_bytes / length:.1f} {unit}"
    return f"{size_bytes} bytes"


# --- packing ----------------------------------------------------------------------------------------------------------


def _pack(root: Path, entries: Iterable[ProjectEntry]) -> bytes:
    # Level 1: four times smaller at 150 MB/s; higher levels take several times as long for a tenth less.
    squeeze = zlib.compressobj(1)
    pieces: list[bytes] = []
    for entry in entries:
        info = tarfile.TarInfo(entry.path)
        info.mode = stat.S_IMODE(entry.mode)
        content = b""
        if stat.S_ISDIR(entry.mode):
            info.type = tarfile.DIRTYPE
        elif stat.S_ISLNK(entry.mode):
            info.type, info.linkname = tarfile.SYMTYPE, entry.target
        else:
            try:
                content = _read(root / entry.path)
            except FileNotFoundError:  # it has just been removed
                continue
            except OSError as error:
                raise unreadable(root / entry.path, error) from error
            info.size = len(content)  # it may have grown since it was listed
        pieces.append(
            squeeze.compress(info.tobuf(tarfile.GNU_FORMAT, *_ENCODING) + content + bytes(-info.size % _BLOCK))
        )
    pieces += [squeeze.compress(_END), squeeze.flush()]
    return b"".join(pieces)


def _read(path: Path) -> bytes:
    # Not followed and not waited for: a link or a pipe may have come in the place of a file since it was listed.
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        return file.read()


# --- unpacking --------------------------------------------------------------------------------------------------------


_UNPACKING = ".unpacking-"
"""Prefix of the name of a folder into which a bundle is being unpacked."""


def unpack(
    data: bytes, into: Path, limit_bytes: int = UNPACK_LIMIT_BYTES, stopped: Callable[[], bool] = lambda: False
) -> Path:
    """Unpack a bundle into a folder of its own, named by its id; does nothing if the folder is there already.

    Args:
        data: data of a `CodeBundle`, from a process that is trusted to run code here, but not to be free of errors.
        into: a private folder of this user; made if it is missing. Several processes may unpack into it at once.
        limit_bytes: the most bytes that may be unpacked.
        stopped: called before each file; on True, a partly unpacked bundle is removed again.

    Returns:
        The folder of the code, mode 0700.

    Raises:
        CodeRefused: the bundle is damaged, too large, or would write elsewhere; or unpacking was stopped.
        OSError: the disk is full, or `into` cannot be written to.
    """
    folder = into / hashlib.sha256(data).hexdigest()
    _make_private(into)
    if folder.is_dir():
        return folder
    for left in into.glob(f"{_UNPACKING}*"):
        remove_left(left)
    with _staged(into, folder) as staged:
        _extract(_Inflating(data, limit_bytes), staged.staged, stopped)
        try:
            staged.commit()
        except OSError:
            if not folder.is_dir():  # another process was quicker
                raise
    return folder


def _staged(into: Path, folder: Path) -> StagedFolder:
    """Begin a folder; another one if a process that unpacks too takes it for one that a dead process has left."""
    while True:
        with contextlib.suppress(FileExistsError):
            return StagedFolder(into / f"{_UNPACKING}{os.urandom(8).hex()}", folder, durable=False)


def _make_private(folder: Path) -> None:
    make_folder(folder)  # the folders above it are closed to other users, too
    facts = os.lstat(folder)
    if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.geteuid() or facts.st_mode & 0o022:
        raise CodeRefused(
            f"code is not unpacked into {folder}: it must be a folder of this user that no other can change"
        )


class _Inflating:
    """The bytes of an archive, decompressed as they are read; never many at once, and never more than the limit."""

    def __init__(self, data: bytes, limit_bytes: int) -> None:
        self._data = memoryview(data)
        self._rest: bytes | memoryview = b""
        self._inflate = zlib.decompressobj()
        # Names and padding count as well, or empty files would be free.
        self._left = self._limit_bytes = limit_bytes

    def read(self, num_bytes: int) -> bytes:
        """Return exactly `num_bytes` bytes."""
        self._left -= num_bytes
        if self._left < 0:
            raise CodeRefused(f"a bundle of code is refused: it unpacks to more than {_shown(self._limit_bytes)}")
        pieces: list[bytes] = []
        while num_bytes:
            if not self._rest:  # in pieces, because the rest of its input is copied with every call
                self._rest, self._data = self._data[:_INPUT_BYTES], self._data[_INPUT_BYTES:]
            try:
                piece = self._inflate.decompress(self._rest, num_bytes)
            except zlib.error as error:
                raise CodeRefused(f"a bundle of code is damaged: {error}") from error
            self._rest = self._inflate.unconsumed_tail
            if not piece and not self._rest and not self._data:
                raise CodeRefused("a bundle of code is damaged: it ends too early")
            pieces.append(piece)
            num_bytes -= len(piece)
        return b"".join(pieces)


def _extract(archive: _Inflating, folder: Path, stopped: Callable[[], bool]) -> None:
    folders = {PurePosixPath()}
    links: dict[PurePosixPath, str] = {}
    num_members = 0
    while (info := _next_header(archive)) is not None:
        num_members += 1
        if stopped():
            raise CodeRefused("a bundle of code was not unpacked to its end: it is no longer needed")
        if num_members > MAX_FILES:
            raise CodeRefused(f"a bundle of code is refused: it has more than {MAX_FILES:,} files and folders")
        name = _inside(info.name)
        if name in links or (info.type in (tarfile.DIRTYPE, tarfile.SYMTYPE) and os.path.lexists(folder / name)):
            raise _refused(info.name, "it is there twice")
        if name.parent not in folders:
            raise _refused(info.name, "the folder that it lies in does not come before it")
        if info.type == tarfile.DIRTYPE:
            (folder / name).mkdir(mode=0o700)
            folders.add(name)
        elif info.type == tarfile.REGTYPE:
            _write(archive, folder / name, info)
        elif info.type == tarfile.SYMTYPE:
            links[name] = info.linkname
        else:
            raise _refused(info.name, "it is neither a file nor a folder nor a symbolic link")
    # Last, so that nothing is written through a link.
    for name, target in links.items():
        _check_link(name, target)
        os.symlink(target, folder / name)


def _next_header(archive: _Inflating) -> tarfile.TarInfo | None:
    """Return the next member, with its long name if it has one; None at the end."""
    long: dict[bytes, str] = {}
    while True:
        block = archive.read(_BLOCK)
        if block.count(0) == _BLOCK:
            return None
        try:
            info = tarfile.TarInfo.frombuf(block, *_ENCODING)
        except tarfile.HeaderError as error:
            raise CodeRefused(f"a bundle of code is damaged: {error}") from error
        if info.type not in (tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK):
            info.name = long.get(tarfile.GNUTYPE_LONGNAME, info.name)
            info.linkname = long.get(tarfile.GNUTYPE_LONGLINK, info.linkname)
            return info
        if not 0 <= info.size <= _MAX_NAME_BYTES:
            raise CodeRefused(f"a bundle of code is refused: it has a name of {info.size} bytes")
        padded = archive.read(info.size + -info.size % _BLOCK)
        long[info.type] = padded[: info.size].rstrip(b"\0").decode(*_ENCODING)


def _inside(name: str) -> PurePosixPath:
    parts = name.rstrip("/").split("/")
    if any(part in ("", ".", "..") for part in parts) or "\0" in name:
        raise _refused(name, "it would lie outside of its folder")
    if len(os.fsencode(name)) > _MAX_PATH_BYTES or any(len(os.fsencode(part)) > _MAX_PART_BYTES for part in parts):
        raise _refused(f"{name[:100]}...", "no disk takes a name as long")
    return PurePosixPath(*parts)


def _check_link(name: PurePosixPath, target: str) -> None:
    """Check that a link goes up along real folders, and then down: so no chain of links leads out."""
    parts = target.split("/")
    num_up = next((index for index, part in enumerate(parts) if part != ".."), len(parts))
    if num_up > len(name.parts) - 1 or ".." in parts[num_up:] or "" in parts or "\0" in target:
        raise _refused(str(name), f"it leads to {target}, outside of its folder")


def _write(archive: _Inflating, path: Path, info: tarfile.TarInfo) -> None:
    if info.size < 0:
        raise CodeRefused(f"a bundle of code is damaged: {info.name} has {info.size} bytes")
    mode = 0o700 if info.mode & 0o100 else 0o600
    try:
        # Neither through a link nor over a file: no honest bundle names a path twice.
        file = open_new_file(path, mode)
    except FileExistsError:
        raise _refused(info.name, "it is there twice") from None
    with file:
        left = info.size
        while left:
            piece = archive.read(min(left, _PIECE))
            file.write(piece)
            left -= len(piece)
    archive.read(-info.size % _BLOCK)


def _refused(name: str, why: str) -> CodeRefused:
    return CodeRefused(f"a bundle of code is refused because of {name!r}: {why}")


# --- paths on the other side ------------------------------------------------------------------------------------------


def remap(path: str, root: str, new_root: str) -> str:
    """Map a path of the launcher to this host: below `new_root` if it was below the root, else unchanged."""
    if path == root:
        return new_root
    prefix = root.rstrip("/") + "/"
    return f"{new_root.rstrip('/')}/{path.removeprefix(prefix)}" if path.startswith(prefix) else path


def remap_paths(sys_path: Sequence[str], root: str, new_root: str, own: Sequence[str] | None = None) -> list[str]:
    """Return the import path of a process on another host than the launcher's.

    Folders inside the project are mapped to its bundle. Folders outside, such as one of PYTHONPATH, are kept where this
    host has them too (a shared file system). The launcher's standard library and installed packages are left out, also
    where they exist: modules come from the interpreter that runs here, whose own path follows in their place.

    Args:
        sys_path: import path of the launcher, absolute.
        root: root of the project there, as in `CodeBundle.root`.
        new_root: root of the project here.
        own: the import path of the interpreter here; `sys.path` by default.
    """
    own = sys.path if own is None else own
    kept: dict[str, None] = {}
    for path in sys_path:
        if _is_of_interpreter(path):
            kept.update(dict.fromkeys(own))
            continue
        here = remap(path, root, new_root)
        if os.path.exists(here):
            kept[here] = None
    return list(kept | dict.fromkeys(own))


def _is_of_interpreter(path: str) -> bool:
    parts = PurePosixPath(path).parts
    if parts[-1:] and parts[-1].startswith("python") and parts[-1].endswith(".zip"):
        return True
    version = ("python3", f"python{sys.version_info.major}.{sys.version_info.minor}")
    standard = any(parts[index] == "lib" and parts[index + 1] in version for index in range(len(parts) - 1))
    return standard or any(part in ("site-packages", "dist-packages") for part in parts)
