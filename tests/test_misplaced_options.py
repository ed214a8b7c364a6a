"""What a function says of an option that belongs to the object of an argument, and an object of a method of others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import pytest

from ropewalk.misplaced_options import tells_names, tells_places


@dataclass
class Colours:
    paper: str
    ink: str = "black"


@tells_places({"colours=Colours('white', {}=...)": Colours, "colours=Colours('white', ink='grey')": ("pencil",)})
def draw(size: int, *, colours: Colours | None = None) -> tuple[int, Colours | None]:
    return size, colours


def test_the_options_of_a_place_may_be_given_by_name() -> None:
    @tells_places({"size=Size({}=...)": ("height",)})
    def cut(size: int) -> int:
        return size

    with pytest.raises(TypeError, match=r"^.*cut has no argument height; write size=Size\(height=\.\.\.\)$"):
        cast("Any", cut)(height=3)
    assert cut(size=2) == 2


def test_arguments_of_the_function_pass() -> None:
    colours = Colours("white")
    assert draw(3, colours=colours) == draw(size=3, colours=colours) == (3, colours)
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        cast("Any", draw)()


@tells_names({"a loop: for x in y: pencil.draw(x)": ("fit",)})
class Pencil:
    def draw(self) -> int:
        return 3

    @property
    def ink(self) -> int:
        return cast("Any", self.draw).missing


def test_a_method_of_others_is_told_with_what_to_write() -> None:
    pencil: Any = Pencil()
    assert pencil.draw() == 3 and not hasattr(pencil, "fit") and not hasattr(pencil, "paint")
    with pytest.raises(AttributeError, match=r"^'Pencil' object has no attribute 'fit'; write a loop: for x in y: "):
        pencil.fit(1)
    with pytest.raises(AttributeError, match=r"^'Pencil' object has no attribute 'paint'$"):
        pencil.paint()
    with pytest.raises(AttributeError, match="no attribute 'missing'"):
        pencil.ink  # noqa: B018


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("ink", r"^draw has no argument ink; write colours=Colours\('white', ink=\.\.\.\)$"),
        ("pencil", r"^draw has no argument pencil; write colours=Colours\('white', ink='grey'\)$"),
        ("paper", r"^draw has no argument paper$"),  # no option: a Colours cannot be made without it
        ("colors", r"^draw has no argument colors; did you mean 'colours'\?$"),
    ],
)
def test_others_are_told_with_their_place(option: str, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        cast("Any", draw)(3, **{option: 1})
