"""Settings: who wins, where a value came from, and what is refused."""

from __future__ import annotations

import os
import pickle
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import ropewalk
from ropewalk import setting_values, settings
from ropewalk.errors import SettingsError
from ropewalk.setting_values import OWN_VARIABLES, PREFIX, refused_files
from tests.other_users import ADA, MALLORY, as_user, needs_root


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_without_anything_the_defaults_work_on_a_laptop(tmp_path: Path) -> None:
    loaded = settings.load({}, {"HOME": "/home/ada"}, [tmp_path / "missing.toml"])
    assert (loaded.engine, loaded.mode) == ("local", "processes")
    assert loaded.key_folder == Path("/home/ada/.config/ropewalk/keys")
    assert loaded.store == "/home/ada/.local/share/ropewalk/runs.db"
    assert loaded.image is None and loaded.logs is None
    assert (loaded.max_processes, loaded.session_idle_s, loaded.lease_s) == (1000, 2.0, 30.0)
    assert loaded.origin("engine") == "default"
    assert (loaded.engine_options, loaded.advertise, loaded.hosts, loaded.code) == ({}, None, None, "bundle")
    assert loaded.code_limit == 100 * 10**6
    assert (loaded.cpus, loaded.gpus, loaded.memory, loaded.time_limit_s) == (None, None, None, None)


def test_argument_beats_environment_beats_files_beat_default(tmp_path: Path) -> None:
    near = write(tmp_path / "near.toml", 'engine = "near"\nimage = "near"\n')
    far = write(tmp_path / "far.toml", 'engine = "far"\nimage = "far"\nlease_s = 7\nmax_processes = 5\n')
    environ = {"ROPEWALK_ENGINE": "slurm", "ROPEWALK_MAX_PROCESSES": "6", "PATH": "/bin"}
    loaded = settings.load({"engine": "ray", "image": None}, environ, [near, far])
    assert (loaded.engine, loaded.origin("engine")) == ("ray", "argument engine")
    assert (loaded.max_processes, loaded.origin("max_processes")) == (6, "environment ROPEWALK_MAX_PROCESSES")
    assert (loaded.image, loaded.origin("image")) == ("near", f"file {near}")
    assert (loaded.lease_s, loaded.origin("lease_s")) == (7.0, f"file {far}")
    assert loaded.origin("session_idle_s") == "default"


def test_the_file_of_the_working_folder_is_named_as_users_write_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "ropewalk.toml", 'engine = "slurm"\n')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "none"))
    monkeypatch.delenv("ROPEWALK_ENGINE", raising=False)
    loaded = settings.current()
    assert (loaded.engine, loaded.origin("engine")) == ("slurm", "file ./ropewalk.toml")
    assert settings.current(engine="local").engine == "local"


def test_a_store_is_a_path_or_a_url(tmp_path: Path) -> None:
    file = write(tmp_path / "ropewalk.toml", 'store = "runs/digits.db"\n')
    assert settings.load({}, {}, [file]).store == str(tmp_path / "runs" / "digits.db")
    url = "postgresql://ada@server/runs"
    assert settings.load({}, {"ROPEWALK_STORE": url}, [file]).store == url
    assert settings.load({}, {"HOME": "/h", "XDG_DATA_HOME": "/data"}, []).store == "/data/ropewalk/runs.db"
    with pytest.raises(SettingsError, match="setting store must be a path"):
        settings.load({"store": 3}, {}, [])


def test_an_empty_variable_counts_as_not_set() -> None:
    assert settings.load({}, {"ROPEWALK_ENGINE": ""}, []).engine == "local"


def test_variables_that_ropewalk_gives_its_own_processes_are_no_settings() -> None:
    settings.load({}, dict.fromkeys(OWN_VARIABLES, "x"), [])


def test_every_variable_that_the_sources_name_is_known() -> None:
    """A variable invented in one module but not listed here would make every nested pool refuse its environment."""
    known = OWN_VARIABLES | {PREFIX + name.upper() for name in settings.load({}, {}, []).__slots__}
    for source in Path(ropewalk.__file__).parent.rglob("*.py"):
        for variable in re.findall(r"\bROPEWALK_[A-Z][A-Z_]*[A-Z]", source.read_text(encoding="utf-8")):
            assert variable in known, f"{source.name} uses {variable}; list it in setting_values.OWN_VARIABLES"


@pytest.mark.parametrize(
    ("arguments", "environ", "expected"),
    [
        ({"engin": "x"}, {}, "unknown setting engin (argument); did you mean engine?"),
        ({}, {"ROPEWALK_ENGIN": "x"}, "unknown setting ROPEWALK_ENGIN (environment); did you mean ROPEWALK_ENGINE?"),
        ({}, {"ROPEWALK_ENGIN": ""}, "did you mean ROPEWALK_ENGINE?"),
        ({"zzz": 1}, {}, "unknown setting zzz (argument); there are "),
    ],
)
def test_an_unknown_name_is_answered_with_the_near_one_and_all(
    arguments: dict[str, object], environ: dict[str, str], expected: str
) -> None:
    with pytest.raises(SettingsError) as caught:
        settings.load(arguments, environ, [])
    assert expected in str(caught.value)
    for name in ("engine", "key_folder", "run_folder", "lease_s"):
        assert name in str(caught.value).lower()


def test_an_unknown_name_in_a_file_names_the_file(tmp_path: Path) -> None:
    file = write(tmp_path / "ropewalk.toml", "[pool]\nworkers = 4\n")
    with pytest.raises(SettingsError, match="unknown setting pool") as caught:
        settings.load({}, {}, [file])
    assert str(file) in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [
        ("engine", " ", "a text that is not empty"),
        ("engine", 3, "a text that is not empty"),
        ("mode", "thread", "one of processes, threads"),
        ("mode", ["threads"], "one of processes, threads"),
        ("max_processes", "many", "a whole number of at least 1"),
        ("max_processes", 0, "a whole number of at least 1"),
        ("max_processes", True, "a whole number of at least 1"),
        ("max_processes", 1.5, "a whole number of at least 1"),
        ("lease_s", "0", "a number of seconds above 0"),
        ("lease_s", "nan", "a number of seconds above 0"),
        ("lease_s", [], "a number of seconds above 0"),
        ("session_idle_s", -1, "a number of seconds, 0 or more"),
        ("session_idle_s", "inf", "a number of seconds, 0 or more"),
        ("run_folder", 7, "a path"),
        ("hosts", 0, "a whole number of at least 1"),
        ("gpus", -1, "a whole number of at least 0"),
        ("cpus", 0, "a number of CPUs above 0"),
        ("cpus", "two", "a number of CPUs above 0"),
        ("cpus", True, "a number of CPUs above 0"),
        ("code", "image", "one of bundle, shared"),
        ("run_folder", "~no-such-user-at-all/x", "a path whose home folder exists"),
    ],
)
def test_a_wrong_value_is_answered_with_rule_value_and_origin(name: str, value: object, rule: str) -> None:
    with pytest.raises(SettingsError) as caught:
        settings.load({name: value}, {}, [])
    assert str(caught.value) == f"setting {name} must be {rule}, not {value!r} (from argument {name})"
    facts = {key: fact for key, fact in vars(caught.value).items() if key != "__notes__"}
    assert facts == {"name": name, "origin": f"argument {name}", "value": value}


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("memory", "8gb", "memory must be a whole number of bytes or a size with one of the units"),
        ("memory", "8gb", 'did you mean "8G"?'),
        ("code_limit", "lots", "not 'lots'"),
        ("time_limit_s", "1:30", 'such as "2h", "1h30m", "1:30:00" or seconds, above 0, not \'1:30\''),
        ("advertise", "login1", "must be the IP address of an interface of this host"),
        ("advertise", "0.0.0.0", "a wildcard would listen everywhere"),
        ("advertise", "::", "a wildcard would listen everywhere"),
        ("advertise", 7, "must be the IP address"),
        ("engine_options", "partition=gpu", 'in the environment a JSON object such as {"partition": "gpu"}'),
        ("engine_options", "[1]", "a table of options by name"),
        ("engine_options", {1: 2}, "a table of options by name"),
    ],
)
def test_a_wrong_quantity_or_address_says_its_rule(name: str, value: object, words: str) -> None:
    with pytest.raises(SettingsError) as caught:
        settings.load({name: value}, {}, [])
    assert words in str(caught.value) and f"setting {name}" in str(caught.value)
    assert str(caught.value).endswith(f"(from argument {name})")


def test_quantities_are_read_as_people_write_them() -> None:
    environ = {
        "ROPEWALK_TIME_LIMIT_S": "2h",
        "ROPEWALK_CODE_LIMIT": "1Gi",
        "ROPEWALK_MEMORY": "8G",
        "ROPEWALK_CPUS": "2",
    }
    loaded = settings.load({"gpus": 0, "advertise": " 10.0.0.5 ", "hosts": "3"}, environ, [])
    assert (loaded.time_limit_s, loaded.code_limit, loaded.memory, loaded.cpus) == (7200.0, 2**30, "8G", 2.0)
    assert (loaded.gpus, loaded.advertise, loaded.hosts) == (0, "10.0.0.5", 3)


def test_on_a_cluster_silence_means_loss_sooner_than_on_one_machine() -> None:
    elsewhere = settings.load({"engine": "ssh"}, {}, [])
    assert (elsewhere.lease_s, elsewhere.origin("lease_s")) == (2.5, "default")
    assert settings.load({"engine": "ssh"}, {"ROPEWALK_LEASE_S": "9"}, []).lease_s == 9.0
    assert settings.load({}, {}, []).lease_s == 30.0


# --- options of engines -----------------------------------------------------------------------------------------------


def test_options_of_the_chosen_engine_come_from_its_table(tmp_path: Path) -> None:
    file = write(tmp_path / "ropewalk.toml", '[engines.slurm]\npartition = "gpu"\n[engines.ssh]\nhosts = ["a", "b"]\n')
    slurm = settings.load({"engine": "slurm"}, {}, [file])
    assert slurm.engine_options == {"partition": "gpu"}
    assert slurm.origin("engine_options") == f"file {file}"
    assert settings.load({"engine": "ssh"}, {}, [file]).engine_options == {"hosts": ["a", "b"]}
    assert settings.load({}, {}, [file]).engine_options == {}


def test_options_are_merged_one_by_one_and_the_stronger_place_wins(tmp_path: Path) -> None:
    near = write(tmp_path / "near.toml", 'engine = "slurm"\n[engines.slurm]\npartition = "near"\naccount = "near"\n')
    far = write(tmp_path / "far.toml", '[engines.slurm]\npartition = "far"\nqos = "far"\nconstraint = "far"\n')
    environ = {"ROPEWALK_ENGINE_OPTIONS": '{"account": "environment", "constraint": "environment"}'}
    loaded = settings.load({"engine_options": {"constraint": "argument"}}, environ, [near, far])
    assert loaded.engine_options == {
        "partition": "near", "account": "environment", "qos": "far", "constraint": "argument",
    }  # fmt: skip
    assert loaded.origin("engine_options") == (
        f"argument engine_options, environment ROPEWALK_ENGINE_OPTIONS, file {near}, file {far}"
    )


def test_options_in_the_environment_are_not_for_another_engine_that_a_call_names() -> None:
    environ = {"ROPEWALK_ENGINE_OPTIONS": '{"partition": "gpu"}', "ROPEWALK_ENGINE": "slurm"}
    assert settings.load({}, environ, []).engine_options == {"partition": "gpu"}
    assert settings.load({"engine": "slurm"}, environ, []).engine_options == {"partition": "gpu"}
    assert settings.load({"engine": "local"}, environ, []).engine_options == {}


@pytest.mark.parametrize("text", ["engines = 3\n", '[engines]\nslurm = "gpu"\n'])
def test_a_table_of_engines_that_is_none_says_how_it_is_written(tmp_path: Path, text: str) -> None:
    file = write(tmp_path / "ropewalk.toml", text)
    with pytest.raises(SettingsError, match=r"as in \[engines.slurm\]") as caught:
        settings.load({}, {}, [file])
    assert str(file) in str(caught.value)


def test_a_file_has_options_in_tables_only(tmp_path: Path) -> None:
    file = write(tmp_path / "ropewalk.toml", '[engine_options]\npartition = "gpu"\n')
    with pytest.raises(SettingsError, match=r"unknown setting engine_options.*engines"):
        settings.load({}, {}, [file])


def test_a_file_that_is_no_toml_is_named(tmp_path: Path) -> None:
    file = write(tmp_path / "ropewalk.toml", "engine = \n")
    with pytest.raises(SettingsError, match="is not TOML") as caught:
        settings.load({}, {}, [file])
    assert str(file) in str(caught.value)
    assert caught.value.__suppress_context__, "the lines of the reader, with frames of ours, stood above it"
    with pytest.raises(SettingsError, match="cannot be read") as caught:
        settings.load({}, {}, [tmp_path])
    assert caught.value.__suppress_context__


def test_a_file_that_is_nested_without_end_is_no_toml(tmp_path: Path) -> None:
    file = write(tmp_path / "ropewalk.toml", "engine_options = " + "[" * 100_000 + "]" * 100_000)
    with pytest.raises(SettingsError, match="is not TOML"):
        settings.load({}, {}, [file])
    with pytest.raises(SettingsError, match="must be a table of options by name"):
        settings.load({}, {"ROPEWALK_ENGINE_OPTIONS": '{"a":' * 100_000 + "1" + "}" * 100_000}, [])


@needs_root
def test_a_folder_that_this_user_may_not_enter_holds_no_settings(tmp_path: Path) -> None:
    # `sudo -u ada` in a folder of root's: nothing could run, for a file that need not even exist.
    file = write(tmp_path / "ropewalk.toml", 'engine = "slurm"\n')
    tmp_path.chmod(0o700)
    assert as_user(ADA, lambda: settings.load({}, {}, [file]).engine) == "local"


@needs_root
@pytest.mark.parametrize("plant", ["a file", "a link", "a pipe", "a folder", "no TOML", "not for us"])
def test_a_file_that_another_user_planted_neither_chooses_the_engine_nor_stops_the_program(
    everybodys: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, plant: str
) -> None:  # S13
    """It once chose the `mpiexec` that another user's Pool(1) ran, in any folder that both may write to."""
    file = everybodys / "ropewalk.toml"

    def by_mallory() -> None:
        match plant:
            case "a file" | "not for us":
                file.write_text('engine = "mpi"\n[engines.mpi]\nmpiexec = "/tmp/planted"\n')
                file.chmod(0o644 if plant == "a file" else 0)
            case "a link":
                file.symlink_to("/etc/passwd")
            case "a pipe":
                os.mkfifo(file)
            case "a folder":
                file.mkdir()
            case _:
                file.write_text("engine = ")

    as_user(MALLORY, by_mallory)
    monkeypatch.chdir(everybodys)
    monkeypatch.setattr(setting_values, "_warned", set[str]())

    def by_ada() -> tuple[set[str], list[str], int]:
        engines = {settings.current().engine for _ in range(3)}
        refused = refused_files(os.environ)
        return engines, [record.getMessage() for record in caplog.records], refused[0].owner

    engines, warnings, owner = as_user(ADA, by_ada)
    assert (engines, owner) == ({"local"}, MALLORY)
    (warning,) = warnings
    assert "ropewalk.toml is not used" in warning and f"user {MALLORY}" in warning and "do not apply" in warning


def test_a_file_of_ours_that_others_may_write_to_says_how_to_close_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    file = write(tmp_path / "ropewalk.toml", 'engine = "slurm"\n')
    file.chmod(0o666)
    monkeypatch.setattr(setting_values, "_warned", set[str]())
    assert settings.load({}, {}, [file]).engine == "local"
    assert f"chmod go-w {file}" in caplog.text and "mode 0666" in caplog.text
    file.chmod(0o644)
    assert settings.load({}, {}, [file]).engine == "slurm"


def test_a_relative_path_in_a_file_means_relative_to_that_file(tmp_path: Path) -> None:
    file = write(tmp_path / "ropewalk.toml", 'logs = "output"\nkey_folder = "/abs"\n')
    loaded = settings.load({}, {"ROPEWALK_RUN_FOLDER": "here"}, [file])
    assert loaded.logs == tmp_path / "output"
    assert loaded.key_folder == Path("/abs")
    assert loaded.run_folder == Path("here")


def test_a_runtime_folder_that_is_gone_is_not_used(tmp_path: Path) -> None:
    environ = {"XDG_RUNTIME_DIR": str(tmp_path / "gone"), "TMPDIR": str(tmp_path)}
    assert settings.load({}, environ, []).run_folder == tmp_path
    assert settings.load({}, {"XDG_RUNTIME_DIR": str(tmp_path)}, []).run_folder == tmp_path


@needs_root
def test_a_runtime_folder_of_another_user_is_not_used(tmp_path: Path) -> None:
    # `su` and `sudo -E` keep the variable, and root may write there: each pool ended in a SettingsError.
    (tmp_path / "theirs").mkdir()
    os.chown(tmp_path / "theirs", MALLORY, MALLORY)
    environ = {"XDG_RUNTIME_DIR": str(tmp_path / "theirs"), "TMPDIR": str(tmp_path)}
    assert settings.load({}, environ, []).run_folder == tmp_path
    assert settings.load({}, {"TMPDIR": str(tmp_path / "theirs")}, []).run_folder == Path("/tmp")


def test_settings_are_a_frozen_value_that_travels() -> None:
    loaded = settings.load({"engine": "slurm"}, {}, [])
    copy = pickle.loads(pickle.dumps(loaded))
    assert copy == loaded and hash(copy) == hash(loaded)
    assert copy.origin("engine") == "argument engine"
    with pytest.raises(AttributeError):
        loaded.engine = "x"  # type: ignore[misc]
    with pytest.raises(SettingsError, match="did you mean engine"):
        loaded.origin("engne")


@given(st.floats(min_value=0, exclude_min=True, allow_nan=False, allow_infinity=False))
def test_seconds_read_back_from_the_environment_as_they_were(value: float) -> None:
    assert settings.load({}, {"ROPEWALK_LEASE_S": repr(value)}, []).lease_s == value


def test_the_toml_reader_is_only_imported_for_a_file(tmp_path: Path) -> None:
    code = "import sys; from ropewalk import settings; settings.current(); print('tomllib' in sys.modules)"
    environ = {**os.environ, "HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)}
    for expected in ("False", "True"):
        result = subprocess.run(
            [sys.executable, "-c", code], cwd=tmp_path, env=environ, capture_output=True, text=True, check=True
        )
        assert result.stdout.strip() == expected
        write(tmp_path / "ropewalk.toml", "lease_s = 1\n")
