"""A store in a PostgreSQL database does what every store does; a real server, of Debian's package."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from ropewalk.errors import StoreError, StoreTooNew
from ropewalk.tracking.records import OwnerIs, StateIs
from ropewalk.tracking.store.opening import open_store
from ropewalk.tracking.store.schema import VERSION_TABLE
from ropewalk.tracking.store.store import RunStore
from tests.lab.postgresql import PostgresqlServer
from tests.tracking.store.making import NOW, begin, logged, of
from tests.tracking.store.suite import StoreSuite


@pytest.fixture
def url(postgresql: PostgresqlServer) -> str:
    return postgresql.new_schema()


@pytest.fixture
def again(url: str) -> Callable[[], RunStore]:
    return lambda: open_store(url)


@pytest.fixture
def store(url: str) -> Iterator[RunStore]:
    with open_store(url) as store:
        yield store


class TestPostgresql(StoreSuite):
    pass


def test_a_store_of_a_newer_version_is_refused(store: RunStore, url: str) -> None:
    with store._engine.begin() as connection:
        connection.exec_driver_sql(f"UPDATE {VERSION_TABLE} SET version_num = '9999'")
    with pytest.raises(StoreTooNew, match="revision '9999'"):
        open_store(url)


def test_processes_that_open_a_new_store_at_once_make_it_once(url: str) -> None:
    opened: list[RunStore] = []
    threads = [threading.Thread(target=lambda: opened.append(open_store(url))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, store in enumerate(opened):
        begin(store, f"r{number}", StateIs("done", NOW))
    assert len(opened) == 3 and [run.id for run in opened[0].runs()] == ["r0", "r1", "r2"]
    for store in opened:
        store.close()


def test_a_database_with_tables_of_others_can_hold_a_store(postgresql: PostgresqlServer) -> None:
    import psycopg

    url = postgresql.new_schema()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE TABLE runs (id INTEGER)")
        connection.execute("CREATE TABLE alembic_version (version_num VARCHAR)")
    with open_store(url) as store:
        begin(store)
        assert len(store.runs()) == 1


def test_a_lost_connection_interrupts_once_and_loses_nothing(store: RunStore, postgresql: PostgresqlServer) -> None:
    begin(store)
    store.apply(of("r1", *logged("x", [1])))
    postgresql.end_connections()
    store.apply(of("r1", *logged("x", [2])))
    assert store.points("r1", "x").values.tolist() == [1, 2]


def test_a_server_that_is_not_there_is_named_without_the_password(postgresql: PostgresqlServer) -> None:
    with pytest.raises(StoreError, match=r"postgresql://u:\*\*\*@.* cannot be used: .* check the server") as caught:
        open_store(f"postgresql://u:secret@/x?host={postgresql.folder}/none")
    assert "secret" not in str(caught.value)


def test_the_clock_of_the_server_says_when_a_run_was_heard(url: str, store: RunStore) -> None:
    # A run of a host whose clock was a minute behind that of the reader looked lost, and went on twice.
    with store._engine.begin() as connection:
        late = "SELECT pg_catalog.clock_timestamp() - interval '600 s'"
        connection.exec_driver_sql(
            f"CREATE FUNCTION clock_timestamp() RETURNS timestamptz AS $$ {late} $$ LANGUAGE sql"
        )
    with open_store(f"{url}%2Cpg_catalog") as of_late_server:
        elsewhere = OwnerIs("elsewhere", 7, 5, "x")
        begin(of_late_server, "r1", elsewhere, StateIs("running", NOW))
        run = of_late_server.run("r1")
        assert run.state == "running" and run.heard < time.time() - 500


def test_a_writer_waits_for_another_one_and_takes_turns(store: RunStore, again: Callable[[], RunStore]) -> None:
    """Two writers that touch the same series in opposite orders would wait for each other for ever."""
    begin(store, "a")
    begin(store, "b")
    failures: list[Exception] = []

    def write(writer: RunStore, runs: tuple[str, str]) -> None:
        try:
            for step in range(20):
                for name in ("x", f"new in step {step}"):  # what is new is inserted, the rest updated
                    writer.apply([record for run in runs for record in of(run, *logged(name, [step]))])
        except Exception as error:
            failures.append(error)

    with again() as other:
        threads = [
            threading.Thread(target=write, args=[store, ("a", "b")]),
            threading.Thread(target=write, args=[other, ("b", "a")]),
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert failures == []
    assert [len(store.points(run, "x")) for run in "ab"] == [40, 40]
