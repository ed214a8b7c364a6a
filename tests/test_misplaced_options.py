"""What a function says of an option that belongs to the object of one of its arguments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import pytest

from ropewalk.misplaced_options import tells_places


@dataclass
class Colours:
    paper: str
    ink: str = "black"


@tells_places({"colours=Colours('white', {}=...)": Colours})
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


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("ink", r"^draw has no argument ink; write colours=Colours\('white', ink=\.\.\.\)$"),
        ("paper", r"^draw has no argument paper$"),  # no option: a Colours cannot be made without it
        ("colors", r"^draw has no argument colors; did you mean 'colours'\?$"),
    ],
)
def test_others_are_told_with_their_place(option: str, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        cast("Any", draw)(3, **{option: 1})
