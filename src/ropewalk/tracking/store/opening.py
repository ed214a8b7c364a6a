"""Opening of stores: where they are, whether they can be trusted, and whether their tables are ours.

A file decides what `ropewalk runs rerun` executes, so a file that another user could have written is refused, and so is
one beside which another user can put a log or a journal, which SQLite would take for that of the file. A file is made
with mode 0600, in a folder that only this user can enter.
"""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from ropewalk import settings
from ropewalk.argument_kinds import check_kind
from ropewalk.atomic_files import open_new_file
from ropewalk.errors import FileNotTrusted, StoreCorrupt, StoreError, StoreMissing
from ropewalk.setting_values import data_folder
from ropewalk.tracking.journal import recover
from ropewalk.tracking.store.databases import ServerClock, file_engine, server_engine
from ropewalk.tracking.store.migrating import migrate
from ropewalk.tracking.store.store import RunStore
from ropewalk.trusted_files import check_unopened, check_unshared, make_private_folder
from ropewalk.user_frames import user_frames_only

_LEAST_BYTES = 512
"""One page of a SQLite file at least."""
_making = threading.Lock()
"""Held while a file is made: its descriptor must be closed before another thread lets SQLite lock the file."""


@user_frames_only
def open_store(where: str | Path | None = None, *, create: bool = True) -> RunStore:
    """Open the store of this user's runs.

    Example:
        >>> import ropewalk as rw
        >>> from ropewalk.tracking import open_store
        >>> with rw.track("measured", system=False) as run:
        ...     for step in run.steps(3):
        ...         run.log(loss=1 / step)
        >>> with open_store() as store:
        ...     store.points(run.id, "loss").values.round(2)
        array([1.  , 0.5 , 0.33])

    Args:
        where: path of a SQLite file, or a URL such as "postgresql://user@host/database"; None is the setting `store`:
            `ROPEWALK_STORE`, or ~/.local/share/ropewalk/runs.db.
        create: make a file that is missing.

    Returns:
        The store; close it, or use it in `with`.

    Raises:
        StoreMissing: there is no such file, and `create` is False.
        StoreTooNew: a newer version of Ropewalk has written it.
        StoreCorrupt: the file is damaged or is not a store; it was not changed.
        StoreError: the store cannot be opened.
        FileNotTrusted: another user could have written the file.
        TypeError: `where` is neither a path nor a URL.
    """
    check_kind("store", where, str | os.PathLike, 'the path or URL of a store ("runs.db"), or the `where` of one')
    store = _open(str(settings.current().store if where is None else where), create=create)
    with contextlib.suppress(StoreError):  # a store that can only be read shows what it has
        recover(store)
    return store


def _open(text: str, *, create: bool) -> RunStore:
    if "://" not in text:
        return _open_file(Path(text).expanduser(), create=create)
    try:
        url = make_url(text)
    except (ArgumentError, ValueError) as error:  # it may quote a password
        raise StoreError("the URL of the store cannot be read; its form is postgresql://user@host:5432/name") from error
    match url.get_backend_name():
        case "sqlite" if url.database:
            return _open_file(Path(url.database).expanduser(), create=create)
        case "postgresql":
            return _open_server(url)
        case other:
            raise StoreError(f"a store is a SQLite file or a PostgreSQL database (postgresql://...), not {other}://...")


def _open_file(path: Path, *, create: bool) -> RunStore:
    path = path.absolute()  # a command that is run in another folder finds it, too
    where = str(path)
    try:
        with _making:
            if create and not path.exists():
                make_private_folder(path.parent)
                check_unshared(path)
                with contextlib.suppress(FileExistsError):  # another process has made it
                    open_new_file(path).close()
            real = Path(check_unopened(path))
            check_unshared(real)
    except FileNotTrusted:
        raise
    except OSError as error:
        if isinstance(error, FileNotFoundError) and not create:
            raise StoreMissing(f"there is no store at {where} yet; the first run makes it", where=where) from error
        raise StoreError(
            f"the store {where} cannot be made or opened: {error}; name a file in a folder that you can write to, with "
            f"ROPEWALK_STORE or store=",
            where=where,
        ) from None
    if 0 < real.stat().st_size < _LEAST_BYTES:  # SQLite would take it for a new one
        size = real.stat().st_size
        raise StoreCorrupt(
            f"the store {where} is damaged or is not a store: it has {size} bytes; it was not changed; name another "
            f"one with ROPEWALK_STORE, or move the file away",
            where=where,
        )
    engine = file_engine(str(real))
    try:
        backup = migrate(engine, where, real)
    except BaseException:
        engine.dispose()
        raise
    return RunStore(engine, where, folder=real.parent / "runs", backup=backup)


def _open_server(url: URL) -> RunStore:
    where = url.render_as_string(hide_password=True)
    engine = server_engine(url)
    try:
        migrate(engine, where, None)
    except BaseException:
        engine.dispose()
        raise
    return RunStore(engine, where, folder=data_folder(os.environ) / "runs", clock=ServerClock(engine))
