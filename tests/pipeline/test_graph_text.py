"""PipeDream's format: what is read, what is written, and what is refused with the line that is wrong."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ropewalk.errors import ProfileInvalid
from ropewalk.pipeline.graph_text import read_graph_text, write_graph_text
from ropewalk.pipeline.profiles import Operator, Profile
from ropewalk.testing.model_profiles import MODEL_PROFILES
from tests.profiles import shipped, text_of

TEXT = """\
node1 -- Input0 -- forward_compute_time=635.902, backward_compute_time=0.000, activation_size=64.0, parameter_size=0.000
node2 -- LSTM(2, 1) -- forward_compute_time=3.190, backward_compute_time=5.348, activation_size=[6.0; 2.0; 2.0], \
parameter_size=48.000 -- stage_id=0
node3 -- Add -- forward_compute_time=0.001, backward_compute_time=0.000, activation_size=6.000, parameter_size=0.000 \
-- stage_id=1
\tnode1 -- node2
\tnode2 -- node3
\tnode1 -- node3
"""


def test_times_are_milliseconds_and_lists_are_sums() -> None:
    profile = read_graph_text(TEXT)
    lstm = profile.by_id["node2"]
    assert (lstm.description, lstm.forward_s, lstm.backward_s) == ("LSTM(2, 1)", 0.00319, 0.005348)
    assert (lstm.output_bytes, lstm.parameters) == (10, {"node2.parameters": 48})
    assert profile.by_id["node3"].parameters == {}
    assert profile.edges == (("node1", "node2"), ("node2", "node3"), ("node1", "node3"))


def test_the_time_to_load_data_is_no_part_of_the_model() -> None:
    first = read_graph_text(TEXT).by_id["node1"]
    assert first.is_input and first.forward_s == 0 and first.output_bytes == 64 and first.gradient_bytes == 0


def test_an_operator_that_reads_another_is_no_input_whatever_its_name() -> None:
    text = TEXT.replace("node3 -- Add", "node3 -- InputShaped")
    assert not read_graph_text(text).by_id["node3"].is_input


def test_the_stages_of_operators_are_written() -> None:
    profile = read_graph_text(TEXT)
    written = write_graph_text(profile, {"node2": 0, "node3": 1})
    ends = [line.split(" -- ")[3:] for line in written.splitlines() if not line.startswith("\t")]
    assert ends == [[], ["stage_id=0"], ["stage_id=1"]]
    assert "stage_id" not in write_graph_text(profile) and read_graph_text(written) == profile


@pytest.mark.parametrize("model", [*MODEL_PROFILES, *shipped("alexnet", "vgg16", "resnet50", "gnmt", "inception_v3")])
def test_profiles_of_models_are_read_and_written_without_loss(model: str) -> None:
    text = text_of(model)
    profile = read_graph_text(text)
    written = write_graph_text(profile)
    assert read_graph_text(written) == profile
    lines, ours = text.rstrip().split("\n"), written.rstrip().split("\n")
    assert [line for line in lines if line.startswith("\t")] == [line for line in ours if line.startswith("\t")]
    for theirs, mine in zip(lines, ours, strict=True):
        if " -- Input" not in theirs:
            assert theirs.split(", activation_size")[0] == mine.split(", activation_size")[0]


def test_lines_end_as_windows_ends_them_too() -> None:
    assert read_graph_text(TEXT.replace("\n", "\r\n")) == read_graph_text(TEXT)


WORDS = st.text(st.characters(exclude_categories=["C", "Zl", "Zp"]), min_size=1, max_size=8)
SECONDS = st.floats(0, 1e6)


@st.composite
def a_profile(draw: st.DrawFn) -> Profile:
    ids = draw(st.lists(WORDS.filter(lambda id: id == id.strip() and " -- " not in id), min_size=1, unique=True))
    operators = [
        Operator(
            id,
            draw(WORDS.filter(lambda text: "--" not in text and not text.startswith("Input"))),
            forward_s=draw(SECONDS),
            backward_s=draw(SECONDS),
            output_bytes=draw(st.integers(0, 10**15)),
            parameters={f"{id}.parameters": size} if (size := draw(st.integers(0, 10**15))) else {},
        )
        for id in ids
    ]
    pairs = [(source, target) for later, target in enumerate(ids) for source in ids[:later]]
    return Profile(tuple(operators), tuple(draw(st.lists(st.sampled_from(pairs), unique=True))) if pairs else ())


@settings(deadline=None, max_examples=60)
@given(a_profile())
def test_what_is_written_is_read_back_to_the_last_bit(profile: Profile) -> None:
    assert read_graph_text(write_graph_text(profile)) == profile


def test_what_would_break_a_line_is_written_otherwise() -> None:
    operator = Operator("x", "a -- b\nc")
    assert read_graph_text(write_graph_text(Profile((operator,), ()))).by_id["x"].description == "a - b c"
    with pytest.raises(ProfileInvalid, match="no way to write the id 'x -- y'"):
        write_graph_text(Profile((dataclasses.replace(operator, id="x -- y"),), ()))


def test_an_input_keeps_being_one_whatever_its_description() -> None:
    profile = Profile((Operator("mask", "bool[8]", output_bytes=8, gradient_bytes=0, is_input=True),), ())
    assert read_graph_text(write_graph_text(profile)).by_id["mask"].is_input


GOOD = "n1 -- d -- forward_compute_time=1.0, backward_compute_time=1.0, activation_size=1.0, parameter_size=1.0"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "at least one operator"),
        ("n1 -- d", r'line 1: an operator needs "id -- description'),
        (f"{GOOD} -- stage_id=0 -- more", "line 1: an operator needs"),
        (GOOD.replace("forward", "foreward"), "line 1: operator 'n1' needs forward_compute_time, .* and has foreward"),
        (GOOD.replace("=1.0, b", "=quick, b"), "line 1: forward_compute_time must be a number .*, not 'quick'"),
        (GOOD.replace("=1.0, a", "=-3, a"), "line 1: backward_compute_time must be a number from 0 .*, not '-3'"),
        (GOOD.replace("=1.0, a", "=nan, a"), "line 1: backward_compute_time"),
        (GOOD.replace("=1.0, p", "=[1.0; x], p"), r"line 1: activation_size .*a list of such.*, not '\[1.0; x\]'"),
        (GOOD.replace("size=1.0, p", "size=[1.0, p"), "line 1: activation_size"),
        (GOOD.replace("size=1.0, p", "size=1e99999999, p"), "line 1: activation_size"),
        (GOOD.replace("parameter_size=1.0", "parameter_size=1.5"), "line 1: parameter_size must be whole bytes"),
        (f"{GOOD} -- stage_id=one", 'line 1: "stage_id=" and a number'),
        (f"{GOOD}\n\n{GOOD}", "line 3: the id 'n1' occurs a second time"),
        (f"{GOOD}\n\tn1 -- n2", "line 2: the edge 'n1' -> 'n2' names 'n2', which no line describes"),
        (f"{GOOD}\n\tn1", 'line 2: a line with a tab needs "source -- target"'),
        (f"{GOOD}\n{GOOD.replace('n1', 'n2')}\n\tn1 -- n2\n\tn2 -- n1", "form a cycle: n1 -> n2 -> n1"),
    ],
)
def test_bad_text_is_refused_with_its_line_and_what_it_needs(text: str, message: str) -> None:
    with pytest.raises(ProfileInvalid, match=message):
        read_graph_text(text)
