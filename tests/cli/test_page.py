from __future__ import annotations

import stat
import urllib.parse
from pathlib import Path

from ropewalk.cli.page import _kept_address, _private_link

URL = "http://127.0.0.1:8470/place/?token=secret&a=1"


def test_browser_gets_the_token_by_a_private_file_and_not_by_an_argument(tmp_path: Path):
    link = _private_link(URL, tmp_path)
    assert "secret" not in link and link.startswith("file:///")
    [file] = tmp_path.iterdir()
    assert Path(urllib.parse.unquote(urllib.parse.urlparse(link).path)) == file
    assert URL.replace("&", "&amp;") in file.read_text()
    assert not stat.S_IMODE(file.stat().st_mode) & 0o077


def test_address_of_a_script_is_kept_in_a_private_file(tmp_path: Path):
    file = Path(_kept_address(URL, tmp_path))
    assert file.read_text() == f"{URL}\n"
    assert not stat.S_IMODE(file.stat().st_mode) & 0o077
