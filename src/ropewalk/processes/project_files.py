"""The project of a script, and which of its files are code that is sent to hosts.

    find_project(script, cwd)   the nearest folder above the script with a pyproject.toml, .git or ropewalk.toml that no
                                other user has put there
    list_files(project)         its files, without those that an ignore file names and those that are never code

A shared folder (the home folder, /tmp, /) is not a project: there only the Python files beside the script are sent.
"""

from __future__ import annotations

import dataclasses
import os
import stat
import sysconfig
import tempfile
from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import Path

from ropewalk.errors import CodeRefused
from ropewalk.processes.ignore_rules import IgnoreRules

MARKERS = ("pyproject.toml", ".git", "ropewalk.toml")
IGNORE_FILE = ".ropewalkignore"
"""Read instead of .gitignore where the project has one at its root; both may also be in subfolders."""
MAX_FILES = 30_000
"""More files and folders than this are data: a host would take minutes to unpack them."""

_NUM_SHOWN = 5
_NEVER = frozenset(
    {".git", ".hg", ".svn", "__pycache__", ".venv", "node_modules", ".mypy_cache", ".ruff_cache", ".pytest_cache",
     ".hypothesis", ".tox", ".nox", ".ipynb_checkpoints", ".DS_Store"}
)  # fmt: skip


@dataclasses.dataclass(frozen=True, slots=True)
class Project:
    """A folder whose code a program needs."""

    root: Path
    """Absolute, without symbolic links."""
    only_beside: bool = False
    """Only the Python files in the folder itself, because many things share that folder."""


@dataclasses.dataclass(frozen=True, slots=True)
class ProjectEntry:
    """A file, folder or symbolic link of a project; equal as long as it has not changed."""

    path: str
    """Relative to the root, with slashes."""
    mode: int
    size_bytes: int
    changed_ns: tuple[int, int, int]
    """Times of its content and of its inode, and the inode's number."""
    target: str = ""
    """Target of a symbolic link, relative to its folder, without links on the way."""


@dataclasses.dataclass(frozen=True, slots=True)
class Listing:
    """The code of a project, each folder before its contents, in an order that does not depend on the disk."""

    entries: tuple[ProjectEntry, ...]
    left_out: tuple[str, ...]
    """Sockets, devices, and links that lead out of the project; not the ignored files."""


def find_project(script: Path | None, cwd: Path) -> Project:
    """Find the project of a script, or of a working folder.

    Args:
        script: the file that runs as `__main__`; None for an interactive session, a notebook or `python -m`. One that
            is installed with Python (a console script) has no project of its own either.
        cwd: the working folder.
    """
    start = Path(os.path.realpath(cwd))
    if script is not None and not _is_installed(Path(os.path.realpath(script))):
        start = Path(os.path.realpath(script)).parent
    shared = _shared_folders()
    # In a folder above to which others may write, any user could put a marker, and everything there would be sent. The
    # owner of the folder of the script decides already what runs.
    owners = {0, os.geteuid(), start.stat().st_uid} if start.exists() else set[int]()
    for folder in (start, *start.parents):
        if folder in shared:
            break
        if any(_marks(folder / marker, owners) for marker in MARKERS):
            return Project(folder)
    return Project(start, only_beside=start in shared)


def _marks(marker: Path, owners: Collection[int]) -> bool:
    try:
        return os.lstat(marker).st_uid in owners
    except OSError:
        return False


def _is_installed(file: Path) -> bool:
    places = (sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib", "scripts"))
    return any(file.is_relative_to(os.path.realpath(place)) for place in places)


def _shared_folders() -> set[Path]:
    named = ["/", "/tmp", "/var/tmp", "/dev/shm", "/home", os.path.expanduser("~"), tempfile.gettempdir()]
    return {Path(os.path.realpath(folder)) for folder in named}


def list_files(project: Project) -> Listing:
    """List the files of a project.

    Raises:
        CodeRefused: it has more files than code ever has, or one of them cannot be read.
    """
    walk = _Walk(project)
    name = IGNORE_FILE if os.path.lexists(project.root / IGNORE_FILE) else ".gitignore"
    try:
        entries = list(walk.entries_of("", IgnoreRules(), name))
    except RecursionError:
        raise CodeRefused(
            f"the project {project.root} has folders nested hundreds deep, below {walk.deepest[:100]}; name them "
            f"in {project.root / IGNORE_FILE}, or remove them"
        ) from None
    return Listing(tuple(entries), tuple(walk.left_out))


class _Walk:
    def __init__(self, project: Project) -> None:
        self._root = str(project.root)
        self._only_beside = project.only_beside
        self._num_seen = 0
        self._num_in: Counter[str] = Counter()
        self.left_out: list[str] = []
        self.deepest = ""

    def entries_of(self, folder: str, rules: IgnoreRules, ignore_file: str) -> Iterator[ProjectEntry]:
        """Return the entries of a folder that are sent, the folder itself not included."""
        where = os.path.join(self._root, folder)
        self.deepest = max(self.deepest, folder, key=len)
        try:
            with os.scandir(where) as scan:
                found = sorted(scan, key=lambda entry: entry.name)
        except OSError as error:
            raise unreadable(Path(where), error) from error
        names = {entry.name for entry in found}
        if folder and "pyvenv.cfg" in names:
            return  # a virtual environment, whatever its name
        if ignore_file in names and not self._only_beside:
            rules = rules.and_those_of(self._rules_in(where, folder, ignore_file), folder)
        for entry in found:
            path = f"{folder}/{entry.name}" if folder else entry.name
            if not self._is_wanted(entry) or rules.ignores(path, is_folder=entry.is_dir(follow_symlinks=False)):
                continue
            self._count(path)
            made = self._entry(entry, path)
            if made is None:
                continue
            if not stat.S_ISDIR(made.mode):
                yield made
                continue
            inside = list(self.entries_of(path, rules, ignore_file))
            if inside or not os.path.lexists(os.path.join(self._root, path, "pyvenv.cfg")):
                yield made
                yield from inside

    def _rules_in(self, where: str, folder: str, name: str) -> str:
        """Return the text of an ignore file. A pipe in its place would never end."""
        path = os.path.join(where, name)
        try:
            if stat.S_ISREG(os.stat(path).st_mode):
                descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
                with open(descriptor, encoding="utf-8", errors="surrogateescape") as file:
                    return file.read()
        except OSError as error:
            raise unreadable(Path(path), error) from error
        self.left_out.append(f"the rules in {os.path.join(folder, name)} (it is not a file)")
        return ""

    def _is_wanted(self, entry: os.DirEntry[str]) -> bool:
        if entry.name in _NEVER or entry.name.endswith(".pyc"):
            return False
        return not self._only_beside or (entry.name.endswith(".py") and entry.is_file(follow_symlinks=False))

    def _count(self, path: str) -> None:
        self._num_seen += 1
        # Two levels: enough to tell `data/images` from `data/labels`.
        folders = path.split("/")[:-1][:2]
        self._num_in.update("/".join(folders[: depth + 1]) for depth in range(len(folders)))
        if self._num_seen > MAX_FILES:
            most = ", ".join(f"{folder} {number:,}" for folder, number in self._num_in.most_common(_NUM_SHOWN))
            raise CodeRefused(
                f"the project {self._root} has more than {MAX_FILES:,} files and folders, which is more than code. "
                f"Most of those seen so far are in: {most or 'the folder itself'}. Name folders of data and results in "
                f"{os.path.join(self._root, IGNORE_FILE)} (one pattern in each line, as in .gitignore), or set "
                'code = "shared" if all hosts see this folder'
            )

    def _entry(self, entry: os.DirEntry[str], path: str) -> ProjectEntry | None:
        try:
            facts = entry.stat(follow_symlinks=False)
            kind = stat.S_IFMT(facts.st_mode)
            target = ""
            if kind == stat.S_IFLNK:
                target = self._target(path)
                if not target:
                    self.left_out.append(f"{path} (a link to {os.readlink(entry.path)}, which is outside)")
                    return None
        except FileNotFoundError:  # it has just been removed
            return None
        if kind not in (stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK):
            self.left_out.append(f"{path} (a socket, pipe or device)")
            return None
        # The time of a folder changes with every file in it, also with those that are not sent.
        changed = (0, 0, 0) if kind == stat.S_IFDIR else (facts.st_mtime_ns, facts.st_ctime_ns, facts.st_ino)
        size_bytes = facts.st_size if kind == stat.S_IFREG else 0
        return ProjectEntry(path, kind | (0o755 if facts.st_mode & 0o100 else 0o644), size_bytes, changed, target)

    def _target(self, path: str) -> str:
        """Return the target of a link, relative to its own folder; empty if that is outside."""
        link = os.path.join(self._root, path)
        leads_to = os.path.realpath(link)
        if not Path(leads_to).is_relative_to(self._root) or leads_to == link:
            return ""
        return os.path.relpath(leads_to, os.path.dirname(link))


def unreadable(path: Path, error: OSError) -> CodeRefused:
    """Return the error for an unreadable file of a project, to be raised by the caller."""
    return CodeRefused(
        f"{path} belongs to the code of the project and cannot be read: {error.strerror or error}; change its "
        f"permissions, or name it in {IGNORE_FILE} at the project's root"
    )
