"""What processes on hosts print, and how they end: with whose name, in order, and whole."""

from __future__ import annotations

from pathlib import Path

from tests.lab import Lab
from tests.scenarios.hosts import cluster_of


def test_output_of_hosts_comes_back_whole_in_order_and_with_names(lab: Lab, tmp_path: Path) -> None:
    with cluster_of(lab, tmp_path, 2) as cluster:
        script = cluster.launch(
            """
            def talk(number):
                for line in range(2000):
                    print(f"{number} {line} {'x' * 100}")
                print("done", number, file=sys.stderr)

            with session(hosts=2) as here:
                with rw.Pool(2, session=here, name="talkers") as pool:
                    pool.wait_until_ready(120)
                    pool.map(talk, range(4), chunksize=1)
            """
        )
        code, out, errors = script.end()
        assert code == 0, errors
        lines = [line.split() for line in out.splitlines()]
        # "[talkers 0@n1] 3 1999 xxx"
        assert {" ".join(words[:2]) for words in lines} in (
            {"[talkers 0@n1]", "[talkers 1@n2]"},
            {"[talkers 0@n2]", "[talkers 1@n1]"},
        )
        for number in range(4):
            assert [int(words[3]) for words in lines if words[2] == str(number)] == list(range(2000))
        assert sorted(line.partition("] ")[2] for line in errors.splitlines()) == [f"done {n}" for n in range(4)]


def test_the_end_of_a_node_on_a_host_is_told_with_exit_code_and_last_words(lab: Lab, tmp_path: Path) -> None:
    with cluster_of(lab, tmp_path, 2) as cluster:
        script = cluster.launch(
            """
            class Worker:
                def run(self):
                    print("I am on", socket.gethostname(), flush=True)
                    print("it is enough", file=sys.stderr, flush=True)
                    os._exit(3)

            with session(hosts=2) as here:
                program = rw.Program("short")
                program.add(rw.Worker(Worker))
                running = program.launch(session=here)
                try:
                    running.wait(120)
                except rw.ProgramFailed as error:
                    say("failed:", str(error).replace(chr(10), " | "))
                say("logs:", running.logs("worker").replace(chr(10), " | "))
            """
        )
        code, out, errors = script.end()
        assert code == 0, errors
        (failed,) = [line for line in out.splitlines() if line.startswith("failed:")]
        (logs,) = [line for line in out.splitlines() if line.startswith("logs:")]
        (printed,) = [line for line in out.splitlines() if "] I am on" in line]
        host = printed.rpartition(" ")[2]
        assert printed == f"[worker 0@{host}] I am on {host}"
        assert f"[worker 0@{host}] it is enough" in errors
        assert "exited with code 3 after" in failed
        assert f"on host {host}); last output: I am on {host} | it is enough." in failed
        assert logs == f"logs: I am on {host} | it is enough | "
