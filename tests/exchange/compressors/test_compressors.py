"""Compressors are found by name, in the table or in other packages."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from ropewalk.errors import ExchangeInvalid
from ropewalk.exchange.compressors import (
    COMPRESSORS,
    ErrorFeedback,
    Half,
    NoCompression,
    Sign,
    TopK,
    make_compressor,
    register_compressor,
)

CODE = """
from dataclasses import dataclass
from ropewalk.exchange.compressors.half import Half

@dataclass(frozen=True)
class Theirs(Half):
    name = "theirs"
"""


@pytest.fixture
def _their_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "their_compressor.py").write_text(CODE)
    info = tmp_path / "their_compressor-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: their-compressor\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[ropewalk.compressors]\ntheirs = their_compressor:Theirs\nbroken = their_compressor:Nothing\n"
    )
    monkeypatch.syspath_prepend(tmp_path)


@pytest.fixture
def _table() -> Iterator[None]:
    before = dict(COMPRESSORS)
    yield
    COMPRESSORS.clear()
    COMPRESSORS.update(before)


def test_a_name_and_options_make_a_compressor() -> None:
    assert make_compressor("none") == NoCompression()
    assert make_compressor("top_k", density=0.1) == TopK(density=0.1)
    assert make_compressor("error_feedback", inner="sign") == ErrorFeedback(Sign())


def test_a_compressor_is_taken_as_it_is() -> None:
    compressor = Half("float16")
    assert make_compressor(compressor) is compressor
    with pytest.raises(ExchangeInvalid, match=r"configured already; it takes no density"):
        make_compressor(compressor, density=0.1)


def test_misspelt_names_and_options_are_answered_with_the_near_one() -> None:
    with pytest.raises(ExchangeInvalid, match=r"there is no compressor 'topk'; did you mean 'top_k'\? There are none,"):
        make_compressor("topk")
    with pytest.raises(ExchangeInvalid, match=r"no option 'densty'; did you mean 'density'\? It has density, values"):
        make_compressor("top_k", densty=0.1)
    with pytest.raises(ExchangeInvalid, match=r"'none' has no option 'density'; it has none"):
        make_compressor("none", density=0.1)
    with pytest.raises(ExchangeInvalid, match=r"'error_feedback' needs the option 'inner'"):
        make_compressor("error_feedback")


@pytest.mark.parametrize(
    ("name", "options", "complaint"),
    [
        ("half", {"dtype": "float8"}, r"dtype must be one of 'bfloat16', 'float16', not 'float8'"),
        ("top_k", {"density": 0.0}, r"above 0 and at most 1, not 0\.0"),
        ("top_k", {"values": "float8"}, r"float8"),
        ("random_k", {"density": 1.5}, r"above 0 and at most 1, not 1\.5"),
        ("quantized", {"levels": 0}, r"not 0"),
        ("low_rank", {"rank": 0}, r"at least 1, not 0"),
        ("censored", {"c": -1.0}, r"at least 0 .* not -1\.0 and 1"),
        ("censored", {"history": 0}, r"at least 1, not 1\.0 and 0"),
    ],
)
def test_values_out_of_range_are_refused_at_once(name: str, options: dict[str, object], complaint: str) -> None:
    with pytest.raises(ExchangeInvalid, match=complaint):
        make_compressor(name, **options)


@pytest.mark.usefixtures("_table")
def test_another_compressor_is_listed_under_its_name_once() -> None:
    @dataclass(frozen=True)
    class Mine(Half):
        name = "mine"

    register_compressor("mine", Mine)
    register_compressor("mine", Mine)
    assert make_compressor("mine", dtype="float16") == Mine("float16")

    class Usurper(Mine):
        pass

    with pytest.raises(ExchangeInvalid, match=r"'mine' is the name of .*Mine"):
        register_compressor("mine", Usurper)


@pytest.mark.usefixtures("_their_package")
def test_what_a_package_adds_is_made_by_name() -> None:
    assert make_compressor("theirs", dtype="float16").name == "theirs"
    with pytest.raises(ExchangeInvalid, match=r"did you mean 'theirs'"):
        make_compressor("their")
    with pytest.raises(ExchangeInvalid, match=r"'broken' cannot be loaded from their_compressor:Nothing"):
        make_compressor("broken")
