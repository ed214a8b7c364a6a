"""The page: what runs, and the runs of the store, in a browser.

`rw.page()` opens it. This package has the same name, and importing it replaces the function in the namespace of
`ropewalk`; so the package can be called as well, and does the same.
"""

from __future__ import annotations

import sys
from types import ModuleType

_TYPE_CHECKING = False
if _TYPE_CHECKING:
    from ropewalk.page.opening import OpenPage


class _CallablePackage(ModuleType):
    """A package that can be called."""

    def __call__(self, *, port: int = 0, store: str | None = None) -> OpenPage:
        """See `ropewalk.page.opening.page`."""
        from ropewalk.page.opening import page

        return page(port=port, store=store)


sys.modules[__name__].__class__ = _CallablePackage
