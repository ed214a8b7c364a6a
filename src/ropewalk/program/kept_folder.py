"""`KeptFolder`: a folder of the user, in which the states of a program's services outlive its launcher."""

from __future__ import annotations

from pathlib import Path

from ropewalk.errors import StartFailed
from ropewalk.launcher_claim import LauncherClaim
from ropewalk.trusted_files import make_private_folder


class KeptFolder:
    """Keeps other launchers from a folder until it is closed.

    Args:
        path: made if it is missing, for this user only.

    Attributes:
        path: the absolute path.

    Raises:
        StartFailed: another launcher keeps its states there.
        OSError: it cannot be made.
    """

    def __init__(self, path: Path) -> None:
        self.path: Path = path.absolute()
        make_private_folder(self.path)
        claim = LauncherClaim.on(self.path)
        if claim is None:
            raise StartFailed(
                f"another launcher keeps the states of its services in {self.path}; give checkpoint= another folder, "
                "or stop that program first (ropewalk ps shows what runs)"
            )
        self._claim = claim

    def close(self) -> None:
        """Let others use it; may be called twice. The states stay there."""
        self._claim.close()


__all__ = ["KeptFolder"]
