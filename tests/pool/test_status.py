"""The state of a pool, as a notebook shows it."""

from __future__ import annotations

from ropewalk.pool.status import PoolStatus, WorkerStatus


def test_a_notebook_shows_workers_and_counts() -> None:
    workers = (
        WorkerStatus("crew.0", 4711, "n1<b>", "running", 12, 3456, 300 << 20, 61.5),
        WorkerStatus("crew.1", 0, "", "starting", None, 0, 0, 0.0),
    )
    status = PoolStatus("crew<script>", "RUN", workers, 100, 1, 3456, 2, 1, 0, (), (), ways=("a reaches b by <c>",))
    shown = status._repr_html_()
    for words in (
        "crew&lt;script&gt;",
        "n1&lt;b&gt;",
        "3,456",
        "300 MiB",
        "1m02s",
        "4711",
        "queued 100",
        "by &lt;c&gt;",
    ):
        assert words in shown
    assert "<script" not in shown and "<b>" not in shown
    assert shown.count("<tr>") == 3
