"""Families: members by name, those of installed packages, and what is said of names and options that do not exist."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ropewalk.families import Family


class Unknown(Exception):
    pass


class Broken(Exception):
    pass


class Knot:
    def __init__(self, strands: int, *, colour: str = "red") -> None:
        self.strands, self.colour = strands, colour


def loose(**options: object) -> object:
    return options


def knots() -> Family[str | Callable[..., object]]:
    return Family(
        "knot",
        {"bowline": Knot, "hitch": f"{__name__}:Knot", "torn": "no_such_rope:Knot", "loose": loose},
        group="ropewalk.test_knots",
        unknown=Unknown,
        broken=Broken,
        added_by="add_knot",
    )


@pytest.fixture
def _their_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "their_rope.py").write_text("class Splice: ...")
    info = tmp_path / "their_rope-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: their-rope\nVersion: 1.0\n")
    entries = "splice = their_rope:Splice\nfrayed = their_rope:Nothing\nbowline = their_rope:Splice\n"
    (info / "entry_points.txt").write_text(f"[ropewalk.test_knots]\n{entries}")
    monkeypatch.syspath_prepend(tmp_path)


def test_a_member_is_itself_or_the_place_that_it_is_imported_from() -> None:
    assert knots().member("bowline") is knots().member("hitch") is Knot


@pytest.mark.usefixtures("_their_package")
def test_packages_add_members_which_are_imported_when_they_are_asked_for() -> None:
    family = knots()
    assert family.installed() == {"splice": "their_rope:Splice", "frayed": "their_rope:Nothing"}
    assert "their_rope" not in sys.modules
    assert family.member("splice").__module__ == "their_rope"
    assert family.member("bowline") is Knot, "a package cannot take the name of a member"
    with pytest.raises(
        Unknown, match=r"there is no knot 'splise'; did you mean 'splice'\? There are bowline, .*splice"
    ):
        family.member("splise")
    with pytest.raises(Broken, match="the knot 'frayed' cannot be loaded from their_rope:Nothing: "):
        family.member("frayed")


def test_what_is_unknown_or_broken_is_named() -> None:
    with pytest.raises(
        Unknown, match="there is no knot 'x'; there are bowline, hitch, torn, loose; another is added with"
    ):
        knots().member("x")
    with pytest.raises(Broken, match="'torn' cannot be loaded from no_such_rope:Knot: No module named 'no_such_rope'"):
        knots().member("torn")


def test_options_are_checked_before_a_member_is_made() -> None:
    assert knots().make("hitch", {"strands": 3}).strands == 3
    assert knots().make("loose", {"any": 1}) == {"any": 1}
    with pytest.raises(
        Unknown, match=r"knot 'bowline' has no option 'color'; did you mean 'colour'\? It has strands, "
    ):
        knots().make("bowline", {"strands": 3, "color": "blue"})
    with pytest.raises(Unknown, match=r"knot 'bowline' needs the option 'strands', as in Knot\(strands=...\)"):
        knots().make("bowline", {})


def test_a_name_is_given_once() -> None:
    family = knots()
    family.add("loop", loose)
    family.add("loop", loose)
    with pytest.raises(Unknown, match=r"'loop' is the name of <function loose .*>; give yours another name"):
        family.add("loop", Knot)


def test_a_class_that_has_a_name_is_added_under_it() -> None:
    class Sheepshank:
        name = "sheepshank"

    family = knots()
    with pytest.raises(
        Unknown, match=r"^the name of Sheepshank is 'sheepshank'; add it under that, and not as 'short'$"
    ):
        family.add("short", Sheepshank)
    family.add("sheepshank", Sheepshank)
    assert family.member("sheepshank") is Sheepshank


def test_an_object_is_returned_as_it_is_and_takes_no_options() -> None:
    family, own = knots(), Knot(2)
    assert family.of(own, {}, Knot) is own
    assert family.of("bowline", {"strands": 4}, Knot).strands == 4
    with pytest.raises(Unknown, match="is configured already; it takes no strands"):
        family.of(own, {"strands": 3}, Knot)
    with pytest.raises(
        Unknown, match="a knot is given by its name or as an object, not as 3; there are bowline, hitch"
    ):
        family.of(3, {}, Knot)


def test_importing_families_loads_nothing_that_only_mistakes_and_packages_need() -> None:
    code = "import sys, ropewalk.engines; print({'difflib', 'importlib.metadata'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout == "set()\n"
