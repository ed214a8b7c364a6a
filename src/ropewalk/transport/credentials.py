"""Which processes belong to a run, and where the run keeps its sockets and secrets.

Every process of a run has an id and a secret of its own (`Credentials`). The launcher and the agents keep the list of
processes that may connect (`AllowList`) and remove those that are retired. Between hosts a certificate is needed as
well as the secret: it is made in `transport/authority.py`, which is imported only then, because `cryptography` takes
longer to import than the rest of Ropewalk.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import stat
import threading
from pathlib import Path

import msgspec

from ropewalk.errors import FileNotTrusted, SettingsError
from ropewalk.surroundings import sendable
from ropewalk.trusted_files import locate, owns_folders

MAX_SOCKET_PATH_BYTES = 107
"""The longest path of a unix socket: `sun_path` is 108 bytes with its final zero."""
MAX_SOCKET_NAME_BYTES = 24
"""The longest name of a socket in the run folder."""
LAUNCHER = "launcher"
"""The id of the launcher in a run."""
_MAX_FOLDER_BYTES = MAX_SOCKET_PATH_BYTES - MAX_SOCKET_NAME_BYTES - len("/")
_NAME_ATTEMPTS = 16
"""How many random names are tried; with 32 bits each, one is nearly always enough."""


class Credentials(msgspec.Struct, frozen=True):
    """What a process proves in order to be let in. Its repr does not show the secret."""

    run_id: str
    """Id of the run to which the process belongs."""
    process_id: str
    """Name of the process in the run, never given to a second process."""
    secret: str
    """64 hexadecimal digits that only this process and the run's allow-list know, or a token (`tokens.py`)."""
    fingerprint: str = ""
    """Fingerprint of its certificate, if it has one."""

    @classmethod
    def create(cls, run_id: str, process_id: str) -> Credentials:
        """Create credentials with a new random secret."""
        return cls(run_id, process_id, os.urandom(32).hex())

    def __repr__(self) -> str:
        return f"Credentials(run_id={self.run_id!r}, process_id={self.process_id!r}, fingerprint={self.fingerprint!r})"


class ProcessCertificate(msgspec.Struct, frozen=True):
    """What a process needs to speak TLS with the others of its run. Its repr does not show the key."""

    cert_pem: str
    """The process's own certificate, PEM."""
    key_pem: str
    """The private key of that certificate, PEM, not encrypted."""
    ca_pem: str
    """The certificate of the run's authority, PEM: the only authority that is trusted."""
    fingerprint: str
    """SHA-256 of the certificate in DER form, 64 hexadecimal digits: its name in the allow-list."""

    def __repr__(self) -> str:
        return f"ProcessCertificate(fingerprint={self.fingerprint!r})"


class AllowList:
    """The processes that may connect in a run. Any thread may call any method."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._secrets: dict[str, bytes] = {}
        self._by_fingerprint: dict[str, str] = {}
        self._stranger = os.urandom(32).hex().encode()

    def admit(self, process_id: str, secret: str, fingerprint: str | None = None) -> None:
        """Let a process in.

        Args:
            process_id: name of the process in the run.
            secret: the secret that it has to prove.
            fingerprint: fingerprint of its certificate, if it speaks TLS.

        Raises:
            ValueError: the name or the fingerprint is taken; a second process must not replace the first, so retire
                that one before.
        """
        with self._lock:
            if process_id in self._secrets:
                raise ValueError(f"process {process_id!r} is admitted already; retire it first, or use a new name")
            owner = self._by_fingerprint.get(fingerprint) if fingerprint else None
            if owner is not None:
                raise ValueError(
                    f"process {process_id!r} has the certificate of process {owner!r}; issue one for each process"
                )
            self._secrets[process_id] = secret.encode()
            if fingerprint:
                self._by_fingerprint[fingerprint] = process_id

    def retire(self, process_id: str) -> None:
        """Refuse a process from now on; may be called twice. The caller closes its links."""
        with self._lock:
            self._secrets.pop(process_id, None)
            self._by_fingerprint = {f: owner for f, owner in self._by_fingerprint.items() if owner != process_id}

    def has_proved(self, process_id: str, fingerprint: str, text: bytes, proof: bytes) -> bool:
        """Return whether a proof is the HMAC of a text under the secret of an admitted process.

        The check takes the same time for wrong and right proofs, and for unknown processes and members.

        Args:
            process_id: name of the process, as it claims.
            fingerprint: fingerprint of its certificate, as it claims.
            text: the text that the proof must cover.
            proof: the proof that it sent.
        """
        secret = self._secret_of(process_id, fingerprint)
        equal = hmac.compare_digest(hmac.digest(secret or self._stranger, text, "sha256"), proof)
        return equal and secret is not None

    def proof_for(self, process_id: str, fingerprint: str, text: bytes) -> bytes:
        """Return the HMAC of a text under the secret of a process, which proves to it that we belong to its run."""
        return hmac.digest(self._secret_of(process_id, fingerprint) or self._stranger, text, "sha256")

    def check_fingerprint(self, fingerprint: str) -> str | None:
        """Return the admitted process that has this certificate; None for a stranger and for a retired process."""
        with self._lock:
            return self._by_fingerprint.get(fingerprint)

    def owns(self, process_id: str, fingerprint: str) -> bool:
        """Return whether a certificate belongs to that process."""
        return self.check_fingerprint(fingerprint) == process_id

    def _secret_of(self, process_id: str, fingerprint: str) -> bytes | None:
        """Return the secret of an admitted process."""
        with self._lock:
            return self._secrets.get(process_id)


def create_run_folder(parent: Path | None = None) -> Path:
    """Make a new folder for the sockets and files of a run, which only this user can enter.

    It gets a random name, so that no other user can have prepared it, and its path is short enough for unix sockets
    whose names have up to `MAX_SOCKET_NAME_BYTES` bytes.

    Args:
        parent: folder in which to make it; by default `XDG_RUNTIME_DIR` if this user owns it, else the folder for
            temporary files, else `/tmp`.

    Returns:
        The path, `<parent>/ropewalk-XXXXXXXX`, mode 0700. The caller removes it.

    Raises:
        SettingsError: no parent can be used; the message has the reason for each.
    """
    reasons: list[str] = []
    for folder in [parent] if parent else _usual_parents():
        reason = _why_unfit(folder)
        if reason is None:
            try:
                return _make_private_folder(folder)
            except OSError as error:
                reason = error.strerror or str(error)
        reasons.append(f"{folder}: {reason}")
    short = "a short path that only you can write"
    advice = f"set {'ROPEWALK_RUN_FOLDER' if parent else 'XDG_RUNTIME_DIR or TMPDIR'} to {short}"
    raise SettingsError(f"no folder for the run's sockets could be made ({'; '.join(reasons)}); {advice}")


def _usual_parents() -> list[Path]:
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    import tempfile  # an agent on the launcher's host gets its folder, and needs none of this

    parents = [Path(runtime)] if os.path.isabs(runtime) and _is_private(Path(runtime)) else []
    return list(dict.fromkeys([*parents, Path(tempfile.gettempdir()), Path("/tmp")]))


def _is_private(folder: Path) -> bool:
    """Return whether a folder is as the XDG specification asks of `XDG_RUNTIME_DIR`.

    This user must own it, and no other may write to it.
    """
    try:
        facts = os.lstat(folder)
    except OSError:
        return False
    return stat.S_ISDIR(facts.st_mode) and facts.st_uid == os.geteuid() and not facts.st_mode & 0o022


def _why_unfit(folder: Path) -> str | None:
    """Return why the run folder cannot be made in `folder`; None if it can."""
    if sendable(str(folder)) != str(folder):
        return "its path is not UTF-8, as the addresses of sockets have to be"
    try:
        facts = os.stat(folder)
    except OSError as error:
        return error.strerror or str(error)
    if not stat.S_ISDIR(facts.st_mode):
        return "is not a folder"
    if not owns_folders(facts.st_uid):
        return f"belongs to user {facts.st_uid}, not to you ({os.geteuid()})"
    if facts.st_mode & 0o022 and not facts.st_mode & stat.S_ISVTX:
        return f"others may rename what is in it (mode {stat.S_IMODE(facts.st_mode):04o} without the sticky bit)"
    try:
        locate(folder, is_folder=True)
    except FileNotTrusted as error:
        return f"others may replace {error.place}, through which it is reached (mode {error.mode:04o})"
    size = len(os.fsencode(folder / "ropewalk-00000000"))
    if size > _MAX_FOLDER_BYTES:
        return f"the run folder's path would have {size} bytes, unix sockets leave room for {_MAX_FOLDER_BYTES}"
    return None


def _make_private_folder(parent: Path) -> Path:
    for _ in range(_NAME_ATTEMPTS):
        path = parent / f"ropewalk-{os.urandom(4).hex()}"
        # mkdir never follows a link and never takes over an existing folder, so one that an attacker prepared is
        # skipped.
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)
            os.chmod(path, 0o700)  # for a umask that took our own rights away; no other user can replace it
            return path
    raise FileExistsError(f"{_NAME_ATTEMPTS} random names were all taken already; somebody may be planting them")
