"""ECharts as a plain script."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from ropewalk.page.echarts_script import EChartsUnknown, echarts_script, plain_script
from tests.lab.plugin import require_packages

ENTRY = 'import{aS as a,aT as r}from"./index-X.js";export{a as echarts,r as loadEchartsGL};\n//# sourceMappingURL=x\n'
SOURCE = "var om=1,zK={init:1},BK=2;export{om as $,zK as aS,BK as aT};\n//# sourceMappingURL=y\n"


def test_the_exported_name_becomes_a_global_one() -> None:
    script = plain_script(ENTRY, SOURCE)
    assert "globalThis.echarts = zK;" in script
    assert "var om=1,zK={init:1},BK=2;" in script
    assert "export" not in script and "sourceMappingURL" not in script


def test_nothing_in_the_script_ends_its_element() -> None:
    script = plain_script(ENTRY, f"var a='</SCRIPT><!--';\r\n{SOURCE}")
    assert "</script" not in script.lower() and "<!--" not in script
    assert "\r" not in script  # a browser would take it for a line feed, and the digest would differ
    assert "<\\/SCRIPT>" in script


@pytest.mark.parametrize(
    ("entry", "source"),
    [
        ("export{a as echarts};", SOURCE),
        (ENTRY.replace("echarts,", "charts,"), SOURCE),
        (ENTRY, SOURCE.replace("zK as aS,", "")),
        (ENTRY, "var zK = 1;"),
    ],
)
def test_another_form_is_an_error(entry: str, source: str) -> None:
    with pytest.raises(ValueError, match="import"):
        plain_script(entry, source)


def test_the_installed_version_has_the_known_form_and_is_not_imported() -> None:
    require_packages("nicegui")
    code = "import sys; from ropewalk.page.echarts_script import echarts_script; print(len(echarts_script())); "
    code += "print('nicegui' in sys.modules)"
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    length, is_imported = done.stdout.split()
    assert int(length) > 500_000
    assert is_imported == "False"


def test_without_nicegui_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'ropewalk\[page\]'"):
        echarts_script()


def test_an_unknown_version_of_nicegui_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Spec:
        submodule_search_locations = (str(tmp_path),)

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: Spec)
    with pytest.raises(EChartsUnknown, match=str(tmp_path)):
        echarts_script()
