"""What the pages say is run and compared."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.code_blocks import Block, blocks_of_text, check, matches, matches_in_any_order, run_blocks

PAGE = """
First some text.

```python
number = 41
print(number)
```

```
41
```

More of it, and a block that shows nothing.

```python
number += 1
```

```
this is not its output, as
```

```python title="program.py"
print("in a file", "number" in globals())
```

```
in a file False
```

```console
$ python program.py
in a ... False
$ echo 'it''s'; false
its
```

<!-- not run: it takes an hour -->
```python
1 / 0
```

<!-- any order -->
<!-- own namespace -->
```python
print("b\\na", "number" in globals())
```

```
a False
b
```

```text
no code
```
""".replace("```\nthis", "```text\nthis")
BLOCKS = blocks_of_text(PAGE, "page.md")


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What the blocks print."""
    return run_blocks(BLOCKS, tmp_path_factory.mktemp("page"))


def test_a_page_is_read_block_by_block() -> None:
    assert [(block.language, block.says, block.file, block.notes) for block in BLOCKS] == [
        ("python", "41\n", "", ()),
        ("python", None, "", ()),
        ("python", "in a file False\n", "program.py", ()),
        ("console", None, "", ()),
        ("python", None, "", ("not run: it takes an hour",)),
        ("python", "a False\nb\n", "", ("own namespace", "any order")),
    ]
    assert [block.is_run for block in BLOCKS] == [True, True, True, True, False, True]
    assert str(BLOCKS[0]) == "page.md:4"


def test_indented_blocks_are_read_without_their_indentation() -> None:
    (block,) = blocks_of_text("=== tab\n\n    ```python\n    if 1:\n        pass\n    ```\n", "page.md")
    assert block.code == "if 1:\n    pass\n"


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.is_run], ids=str)
def test_blocks_print_what_the_page_says(block: Block, printed: dict[str, str]) -> None:
    check(block, printed[block.name])


def test_blocks_of_a_page_share_their_variables(tmp_path: Path) -> None:
    blocks = blocks_of_text(PAGE.replace("number += 1", "number += 1; print(number)"), "page.md")
    assert run_blocks(blocks[:2], tmp_path)[blocks[1].name] == "42\n"


def test_another_output_an_exception_and_a_warning_are_found() -> None:
    block = Block("page.md", 1, "python", "", says="41\n")
    for printed in ("42\n", "41\n41\n", "", "41\npage.md:1: UserWarning: no\n"):
        with pytest.raises(AssertionError, match="says\n41\n"):
            check(block, printed)
    with pytest.raises(AssertionError):
        check(Block("page.md", 1, "python", ""), "Traceback (most recent call last):\n  ...\n")
    check(Block("page.md", 1, "python", ""), "anything\n")


def test_three_dots_stand_for_anything() -> None:
    assert matches("a ... c\n", "a b c\n") and matches("...\nb\n...\n", "a\na\nb\n") and matches("a...\n", "a\n")
    assert not matches("a ... c\n", "a\nc\n") and not matches("a\n...\n", "b\n") and not matches("a.c\n", "abc\n")


def test_lines_in_any_order_are_all_there_and_others_only_where_the_page_says_so() -> None:
    assert matches_in_any_order("b ... c\na\n", "a\nb 1 c\n")
    assert not matches_in_any_order("a\na\n", "a\nb\n") and not matches_in_any_order("a\n", "a\na\n")
    assert matches_in_any_order("...\na\n", "z\na\nb\n") and not matches_in_any_order("...\na\n", "b\n")
