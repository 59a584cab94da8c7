"""Settings: default < environment < file < command line, and which one won."""

from __future__ import annotations

import pytest

from penstock.config.settings import Setting, leaves
from tests.config.files import TINY, flow_of, look_at, only_problem

LAYERS = [
    ({}, "", {}, "1", "default"),
    ({"PENSTOCK_MAXPROCS": "2"}, "", {}, "2", "environment PENSTOCK_MAXPROCS"),
    ({"PENSTOCK_MAXPROCS": "2"}, "system: {maxprocs: 3}\n", {}, "3", "file, line 1"),
    (
        {"PENSTOCK_MAXPROCS": "2"},
        "system: {max_proc: 3}\n",
        {"maxprocs": "4"},
        "4",
        "command line",
    ),
]


def setting(flow, name: str) -> Setting:
    [found] = [one for one in flow.settings if one.name == name]
    return found


@pytest.mark.parametrize(("env", "text", "overrides", "value", "origin"), LAYERS)
def test_the_stronger_origin_wins(env, text, overrides, value, origin):
    flow = flow_of(text + TINY, env=env, overrides=overrides)
    found = setting(flow, "maxprocs")
    assert (found.value, found.origin) == (value, origin)
    assert flow.system.maxprocs == int(value)


def test_what_was_overridden_is_kept_strongest_first():
    env, text, overrides, _, _ = LAYERS[-1]
    found = setting(flow_of(text + TINY, env=env, overrides=overrides), "maxprocs")
    assert found.overridden == (
        ("file, line 1", "3"),
        ("environment PENSTOCK_MAXPROCS", "2"),
        ("default", "1"),
    )


def test_every_leaf_of_system_is_a_setting_with_a_variable_of_its_own():
    found = list(leaves())
    assert len({leaf.variable for leaf in found}) == len(found)
    names = {leaf.name: leaf.variable for leaf in found}
    assert names["admin.bind"] == "PENSTOCK_ADMIN_BIND"
    assert names["data_dir"] == "PENSTOCK_DATA_DIR"
    assert names["log_level"] == "PENSTOCK_LOG_LEVEL"
    assert names["log.retention.age_s"] == "PENSTOCK_LOG_RETENTION_AGE_S"


def test_settings_of_one_group_may_come_from_different_origins():
    flow = flow_of(
        "system: {admin: {bind_addr: ':9000'}}\n" + TINY,
        env={"PENSTOCK_ADMIN_ENABLED": "false", "PENSTOCK_LOG_SEGMENT_BYTES": "1GiB"},
        overrides={"system.admin.bind": "9001", "log.retention.age_s": "7d"},
    )
    assert flow.system.admin.enabled is False
    assert str(flow.system.admin.bind) == "127.0.0.1:9001"
    assert flow.system.log.segment_bytes == 2**30
    assert flow.system.log.retention.age_s == 7 * 86_400


def test_a_list_comes_from_a_variable_with_commas():
    flow = flow_of(TINY, env={"PENSTOCK_LOG_ENGINE": "kafka", "PENSTOCK_LOG_SERVERS": "a:1, b:2"})
    assert flow.system.log.servers == ["a:1", "b:2"]
    assert flow.missing()[0].what == "log engine kafka"


def test_kept_in_the_file_overrides_limits_from_the_environment():
    env = {"PENSTOCK_LOG_RETENTION_AGE_S": "60"}
    assert flow_of(TINY, env=env).system.log.retention.age_s == 60
    flow = flow_of("system: {log: {retention: kept}}\n" + TINY, env=env)
    assert flow.system.log.retention.age_s is None
    assert setting(flow, "log.retention.age_s").origin == "file, line 1"


def test_a_wrong_variable_is_named():
    problem = only_problem(TINY, env={"PENSTOCK_MAXPROCS": "many"})
    assert str(problem).startswith("PENSTOCK_MAXPROCS: error:")
    assert "expected a whole number, found `many`" in problem.message


def test_a_wrong_override_is_named():
    problem = only_problem(TINY, overrides={"admin.bind": "nowhere"})
    assert str(problem).startswith("--set admin.bind: error:")


def test_an_unknown_override_is_an_error_with_the_nearest_name():
    problem = only_problem(TINY, overrides={"admin.bnd": "1"})
    assert problem.hint == "did you mean `admin.bind`?"


def test_an_unknown_variable_is_a_warning_with_the_nearest_name():
    loaded = look_at(TINY, env={"PENSTOCK_MAXPROC": "2", "PENSTOCK_PLUGIN_PATH": "/p", "HOME": "/"})
    assert loaded.flow is not None
    [warning] = loaded.problems
    assert (warning.severity, warning.file) == ("warning", "PENSTOCK_MAXPROC")
    assert warning.hint == "did you mean `PENSTOCK_MAXPROCS`?"


def test_an_empty_variable_is_as_good_as_none():
    assert flow_of(TINY, env={"PENSTOCK_MAXPROCS": ""}).system.maxprocs == 1


def test_data_live_beside_the_file_unless_someone_says_otherwise(tmp_path):
    path = tmp_path / "orders.yaml"
    assert flow_of(TINY, path=path).data_dir == tmp_path / ".penstock"
    text = "system: {data_dir: here}\n" + TINY
    assert flow_of(text, path=path).data_dir == tmp_path / "here"
    given = flow_of(text, path=path, overrides={"data_dir": "elsewhere"})
    assert str(given.data_dir) == "elsewhere"
    env = {"PENSTOCK_DATA_DIR": "/var/lib/penstock"}
    assert str(flow_of(TINY, path=path, env=env).data_dir) == "/var/lib/penstock"
