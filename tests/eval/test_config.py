"""The evaluation file: every fault is named at once, at its key, with the nearest valid name."""

from __future__ import annotations

from pathlib import Path

import pytest

from osmosis_ai.errors import ConfigError
from osmosis_ai.eval.config import EvalFile, load_config
from osmosis_ai.rollout.driver.base import ModelPrice
from tests.eval.workspace import MINIMAL, Workspace


def faults(workspace: Workspace, text: str) -> dict[str, str]:
    with pytest.raises(ConfigError) as caught:
        load_config(workspace.write_config(text))
    issues = caught.value.issues
    for key, message in issues:
        assert f"  - {key}: {message}" in str(caught.value).splitlines()
    return dict(issues)


def test_a_minimal_file_has_the_documented_defaults(workspace: Workspace) -> None:
    config = workspace.config()
    assert config.workspace == workspace.root.resolve()
    assert config.entrypoint == workspace.root.resolve() / "rollouts" / "hello" / "main.py"
    assert config.evals_dir == workspace.root.resolve() / ".osmosis" / "evals"
    evaluation = config.file.evaluation
    assert (evaluation.n, evaluation.limit, evaluation.batch_size) == (1, None, None)
    assert (evaluation.pass_threshold, evaluation.workflow_failed_reward) == (1.0, None)
    assert (evaluation.agent_workflow_timeout_s, evaluation.grader_timeout_s) == (None, None)


def test_a_full_file_is_read(workspace: Workspace) -> None:
    text = (
        MINIMAL
        + """
commit_sha = "abcdef1"
[evaluation]
limit = 0
n = 4
batch_size = 8
pass_threshold = 0
agent_workflow_timeout_s = 450
grader_timeout_s = 1.5
workflow_failed_reward = 0
[model]
base_url = "http://127.0.0.1:1/v1"
params = { temperature = 0.5 }
max_retries = 0
[env]
FOO = "bar"
[secrets]
required = ["KEY"]
[advanced]
whatever = { goes = true }
"""
    )
    config = load_config(workspace.write_config(text))
    evaluation = config.file.evaluation
    assert (evaluation.limit, evaluation.n, evaluation.batch_size) == (0, 4, 8)
    assert (evaluation.pass_threshold, evaluation.workflow_failed_reward) == (0.0, 0.0)
    assert config.file.env == {"FOO": "bar"}
    model = config.model_spec({})
    assert (model.path, model.base_url) == ("scripted:policy:reply", "http://127.0.0.1:1/v1")
    assert (model.api_key, model.params, model.max_retries) == (None, {"temperature": 0.5}, 0)


def test_a_config_may_lie_anywhere_in_its_workspace(workspace: Workspace) -> None:
    path = workspace.root / "rollouts" / "hello" / "eval.toml"
    path.write_text(MINIMAL)
    assert load_config(path).workspace == workspace.root.resolve()


def test_every_fault_is_named_at_once(workspace: Workspace) -> None:
    text = """
[experiment]
rollout = "hello"
entrypoint = 3
dataset = ""
datasets = "x"
[evaluation]
n = 0
limit = 1.5
batch_size = true
pass_threshold = nan
agent_workflow_timeout_s = "long"
grader_timeout_s = inf
pas_threshold = 1
max_model_calls = 0
max_tokens = 1.5
max_cost = 0
run_max_cost = nan
run_max_tokens = -1
stall_sec = 0
listen = "9000"
advertise_url = "gpu-box"
[model]
base_url = "localhost"
max_retries = -1
params = 3
price = { prompt = -1, completon = 2 }
[env]
A = 1
[secrets]
required = "KEY"
[evalution]
n = 2
"""
    path = workspace.config_path
    assert faults(workspace, text) == {
        "experiment.entrypoint": "must be a string, got 3",
        "experiment.model_path": f"Missing 'model_path' in [experiment] section of {path}",
        "experiment.dataset": "must not be empty",
        "experiment.datasets": "Unrecognized key; did you mean 'dataset'?",
        "evaluation.n": "must be a positive integer, got 0",
        "evaluation.limit": "must be an integer, got 1.5",
        "evaluation.batch_size": "must be an integer, got True",
        "evaluation.pass_threshold": "must be finite, got nan",
        "evaluation.agent_workflow_timeout_s": "must be a number, got 'long'",
        "evaluation.grader_timeout_s": "must be finite, got inf",
        "evaluation.pas_threshold": "Unrecognized key; did you mean 'pass_threshold'?",
        "evaluation.max_model_calls": "must be a positive integer, got 0",
        "evaluation.max_tokens": "must be an integer, got 1.5",
        "evaluation.max_cost": "must be more than 0, got 0",
        "evaluation.run_max_cost": "must be finite, got nan",
        "evaluation.run_max_tokens": "must be a positive integer, got -1",
        "model.price.prompt": "must be at least 0, got -1",
        "model.price.completion": f"Missing 'completion' in [model.price] section of {path}",
        "model.price.completon": "Unrecognized key; did you mean 'completion'?",
        "evaluation.stall_sec": "must be more than 0, got 0",
        "evaluation.listen": "is invalid: '9000' must be HOST:PORT, such as 0.0.0.0:9000",
        "evaluation.advertise_url": "is invalid: 'gpu-box' must be the address at which servers "
        "reach this machine, such as http://my-machine:9000",
        "model.base_url": r"is invalid: 'localhost' does not match ^https?://\S+$",
        "model.max_retries": "must be at least 0, got -1",
        "model.params": "must be a table, got 3",
        "env.A": "must be a string, got 1",
        "secrets.required": "must be a list, got 'KEY'",
        "evalution": "Unrecognized section; did you mean 'evaluation'?",
    }


def test_an_address_that_tells_rollouts_nothing_is_refused(workspace: Workspace) -> None:
    everywhere = 'listen = "0.0.0.0:9000"\n'
    advertised = 'advertise_url = "http://gpu-box:9000/"\n'
    assert list(faults(workspace, MINIMAL + "[evaluation]\n" + everywhere)) == ["evaluation.listen"]
    alone = faults(workspace, MINIMAL + "[evaluation]\n" + advertised)
    assert alone == {
        "evaluation.advertise_url": "goes with evaluation.listen, which says the port that it "
        "leads to"
    }
    workspace.write_config(MINIMAL + "[evaluation]\nstall_sec = 300\n" + everywhere + advertised)
    listener = workspace.config().listener
    assert (listener.host, listener.port, listener.stall_sec) == ("0.0.0.0", 9000, 300.0)
    assert listener.advertise_url == "http://gpu-box:9000"


def test_a_key_in_the_wrong_section_is_told_where_it_belongs(workspace: Workspace) -> None:
    text = MINIMAL + "n = 4\n[evaluation]\ndataset = 'x'\nzebra = 1\n"
    assert faults(workspace, text) == {
        "experiment.n": "Unrecognized key; 'n' belongs to [evaluation]",
        "evaluation.dataset": "Unrecognized key; 'dataset' belongs to [experiment]",
        "evaluation.zebra": "Unrecognized key; it can be limit, n, batch_size, adaptive, "
        "pass_threshold, agent_workflow_timeout_s, grader_timeout_s, workflow_failed_reward, "
        "max_model_calls, max_tokens, max_cost, run_max_model_calls, run_max_tokens, run_max_cost, "
        "stall_sec, listen, advertise_url",
    }


def test_an_unknown_section_without_a_near_name_gets_the_list(workspace: Workspace) -> None:
    assert faults(workspace, MINIMAL + "[zzz]\n") == {
        "zzz": "Unrecognized section; "
        "it can be experiment, evaluation, model, env, secrets, advanced"
    }


@pytest.mark.parametrize(
    ("text", "key", "message"),
    [
        ("", "experiment", "Missing [experiment] section in {path}"),
        ("experiment = 3", "experiment", "[experiment] must be a table in {path}"),
        (MINIMAL + "[secrets]\n", "secrets.required", "Missing 'required' in [secrets] section"),
        ("env = 3\n" + MINIMAL, "env", "[env] must be a table in {path}"),
    ],
)
def test_a_missing_part_is_named_with_the_file(
    workspace: Workspace, text: str, key: str, message: str
) -> None:
    expected = message.format(path=workspace.config_path)
    assert faults(workspace, text)[key].startswith(expected)


@pytest.mark.parametrize(
    ("old", "new", "key", "message"),
    [
        ('"hello"\nentry', '"../x"\nentry', "experiment.rollout", "must be a single path segment"),
        ('"hello"\nentry', '"helo"\nentry', "experiment.rollout", "did you mean 'hello'?"),
        ('"hello"\nentry', '"zz"\nentry', "experiment.rollout", "there are ['hello']"),
        ('"main.py"', '"../../x.py"', "experiment.entrypoint", "must stay inside"),
        ('"main.py"', '"other.py"', "experiment.entrypoint", "no file"),
        ('"scripted:policy:reply"', '"scripted:p"', "experiment.model_path", "scripted:module"),
    ],
)
def test_what_the_file_points_to_is_checked(
    workspace: Workspace, old: str, new: str, key: str, message: str
) -> None:
    assert message in faults(workspace, MINIMAL.replace(old, new, 1))[key]


def test_a_price_is_for_a_million_tokens(workspace: Workspace) -> None:
    assert faults(workspace, MINIMAL + "[model]\nprice = 3\n") == {
        "model.price": "must be a table, got 3"
    }
    workspace.write_config(MINIMAL + "[model]\nprice = { prompt = 0.25, completion = 2 }\n")
    assert workspace.config().model_spec({}).price == ModelPrice(0.25e-6, 2e-6)


def test_branch_and_commit_exclude_each_other(workspace: Workspace) -> None:
    text = MINIMAL + 'branch = "main"\ncommit_sha = "abcdef1"\n'
    assert faults(workspace, text) == {
        "experiment.commit_sha": "give branch or commit_sha, not both"
    }


def test_names_of_environment_and_secrets_are_checked(workspace: Workspace) -> None:
    text = (
        MINIMAL
        + """
[env]
lower = "x"
_OSMOSIS_ROLLOUT_PORT = "1"
KEY = "x"
[secrets]
required = ["KEY", "TWICE", "TWICE"]
"""
    )
    assert faults(workspace, text) == {
        "env.lower": "is invalid: must match [A-Z_][A-Z0-9_]*",
        "env._OSMOSIS_ROLLOUT_PORT": "is invalid: names with _OSMOSIS_ are reserved",
        "env.KEY": "is also in secrets.required; keep it in one of the two",
        "secrets.required": "names TWICE twice",
    }


def test_a_flag_is_the_same_field_and_wins(workspace: Workspace) -> None:
    workspace.write_config(MINIMAL + "[evaluation]\nn = 4\nlimit = 9\n")
    config = load_config(
        workspace.config_path, overrides={"evaluation.n": 2, "evaluation.limit": None}
    )
    assert (config.file.evaluation.n, config.file.evaluation.limit) == (2, 9)
    with pytest.raises(ConfigError, match=r"evaluation\.n: must be a positive integer, got -1"):
        load_config(workspace.config_path, overrides={"evaluation.n": -1})


def test_a_flag_on_a_section_that_is_no_table_leaves_the_fault_to_the_file(
    workspace: Workspace,
) -> None:
    workspace.write_config("evaluation = 3\n" + MINIMAL)
    with pytest.raises(ConfigError, match=r"\[evaluation\] must be a table"):
        load_config(workspace.config_path, overrides={"evaluation.n": 2})


def test_a_file_that_cannot_be_read_is_one_sentence(workspace: Workspace) -> None:
    with pytest.raises(ConfigError, match="Config file not found"):
        load_config(workspace.root / "nothing.toml")
    with pytest.raises(ConfigError, match=r"Cannot read .*: Is a directory"):
        load_config(workspace.root)
    with pytest.raises(ConfigError, match=r"Invalid TOML in .*hello\.toml"):
        load_config(workspace.write_config("[experiment"))
    workspace.config_path.write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="Invalid TOML in"):
        load_config(workspace.config_path)


def test_a_file_outside_of_any_workspace_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "eval.toml"
    path.write_text(MINIMAL)
    with pytest.raises(ConfigError, match="a workspace is a directory that has rollouts/"):
        load_config(path)


def test_a_long_value_is_shortened(workspace: Workspace) -> None:
    text = MINIMAL.replace('"main.py"', str(list(range(100))))
    assert faults(workspace, text)["experiment.entrypoint"].endswith("...")


def test_the_key_of_the_model_comes_from_the_environment(workspace: Workspace) -> None:
    config = load_config(workspace.write_config(MINIMAL + '[model]\napi_key_env = "MY_KEY"\n'))
    assert config.model_spec({"MY_KEY": "s3cret"}).api_key == "s3cret"
    assert "s3cret" not in repr(config.model_spec({"MY_KEY": "s3cret"}))
    with pytest.raises(ConfigError, match="MY_KEY, which is not set: export it"):
        config.model_spec({"MY_KEY": ""})


def test_missing_secrets_are_named_together(workspace: Workspace) -> None:
    config = load_config(workspace.write_config(MINIMAL + '[secrets]\nrequired = ["A","B","C"]\n'))
    config.check_secrets({"A": "1", "B": "2", "C": "3"})
    with pytest.raises(ConfigError, match="names B, C: not set") as caught:
        config.check_secrets({"A": "1", "C": ""})
    assert caught.value.key == "secrets.required"


def test_the_schema_explains_each_key() -> None:
    """Editors show it beside the file."""
    evaluation = EvalFile.model_json_schema()["$defs"]["EvaluationSection"]["properties"]
    assert all(field["description"] for field in evaluation.values())
