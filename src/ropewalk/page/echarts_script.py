"""ECharts as one plain script, out of the wheel of NiceGUI, for files that are opened without a server.

    nicegui/elements/echart/dist/index.js     import {aS as a, ...} from "./index-X.js"; export {a as echarts, ...}
                                 index-X.js   ... export {local as aS, ...};
                                        ▼
    (function () { ... globalThis.echarts = local; })();

The wheel has ECharts as a module in several files, and a browser loads no module from a file. The file with ECharts is
complete in itself: it has one import, of the parts for three dimensions, which happens only where they are asked for.
NiceGUI itself is not imported.
"""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

_INSTALL = "a report has the pictures of ECharts, which come with NiceGUI: pip install 'ropewalk[page]'"
_NAME = r"[A-Za-z0-9_$]+"
_IMPORT = re.compile(r'^import\{(?P<names>[^}]*)\}from"\./(?P<file>[\w.-]+\.js)"')
_EXPORT = re.compile(r"export\{(?P<names>[^{}]*)\};?\s*(//# sourceMappingURL=[^\n]*)?\s*$")


class EChartsUnknown(ImportError):
    """ECharts is not in the installed NiceGUI as in the versions that are known here."""


def echarts_script() -> str:
    """Return a script that sets the global name `echarts`.

    Raises:
        ModuleNotFoundError: NiceGUI is not installed.
        EChartsUnknown: the installed version of NiceGUI has ECharts in another form.
    """
    spec = importlib.util.find_spec("nicegui")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(_INSTALL, name="nicegui")
    folder = Path(spec.submodule_search_locations[0], "elements", "echart", "dist")
    try:
        entry = (folder / "index.js").read_text(encoding="utf-8")
        names = _IMPORT.match(entry)
        if names is None:
            raise EChartsUnknown(_unknown(folder, "index.js imports nothing"))
        source = (folder / names["file"]).read_text(encoding="utf-8")
    except OSError as error:
        raise EChartsUnknown(_unknown(folder, str(error))) from error
    try:
        return plain_script(entry, source)
    except ValueError as error:
        raise EChartsUnknown(_unknown(folder, str(error))) from error


def plain_script(entry: str, source: str) -> str:
    """Return the module with ECharts as a plain script.

    Args:
        entry: the text of `index.js`.
        source: the text of the file that it imports.

    Raises:
        ValueError: they do not export and import as described above.
    """
    imports, public, exports = _IMPORT.match(entry), _EXPORT.search(entry), _EXPORT.search(source)
    if imports is None or public is None or exports is None:
        raise ValueError("they neither import nor export as expected")
    local = _original(public["names"], "echarts")
    inner = _original(exports["names"], _original(imports["names"], local))
    body = source[: exports.start()]
    script = f'(function () {{ "use strict";\n{body}\nglobalThis.echarts = {inner};\n}})();'
    # Inside of a string or a regular expression, which is where these can be, the backslash changes nothing.
    script = re.sub("</(script)", r"<\\/\1", script, flags=re.IGNORECASE).replace("<!--", "<\\!--")
    return script.replace("\r\n", "\n").replace("\r", "\n")


def _original(names: str, wanted: str) -> str:
    """Return the name that "original as wanted" has in a list of imports or exports."""
    for pair in names.split(","):
        original, _, name = pair.strip().partition(" as ")
        if (name or original) == wanted and re.fullmatch(_NAME, original):
            return original
    raise ValueError(f"{wanted} is not imported or exported")


def _unknown(folder: Path, why: str) -> str:
    return f"the ECharts of NiceGUI in {folder} has an unknown form ({why}); pip install 'nicegui==3.18'"
