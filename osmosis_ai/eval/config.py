"""EvalConfig: the TOML file of an evaluation, with every fault in it named at once."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeAlias

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    FiniteFloat,
    StringConstraints,
    ValidationError,
)
from pydantic_core import ErrorDetails

from osmosis_ai.errors import ConfigError, Issue
from osmosis_ai.hint import did_you_mean
from osmosis_ai.rollout.driver.base import (
    Budget,
    ModelLimits,
    ModelPrice,
    ModelSpec,
    Spending,
)
from osmosis_ai.rollout.driver.listener_spec import (
    ListenerSpec,
    check_advertise_url,
    check_listen,
)
from osmosis_ai.rollout.types import check_path_segment

_Text = Annotated[str, StringConstraints(min_length=1)]


class _Section(BaseModel):
    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True
    )


class ExperimentSection(_Section):
    """`[experiment]`: what is evaluated, with which model, on what."""

    rollout: Annotated[_Text, AfterValidator(check_path_segment)]
    """Directory under `rollouts/`."""
    entrypoint: _Text
    """Python file in that directory."""
    model_path: _Text
    """`scripted:module:attr`, the model name at `[model] base_url`, or a LiteLLM name."""
    dataset: _Text
    """A csv, jsonl or parquet file, or the name of one in `data/`."""
    branch: Annotated[str, StringConstraints(pattern=r"^\S+$")] | None = None
    """Ignored here: for hosted runs."""
    commit_sha: Annotated[str, StringConstraints(pattern=r"^[0-9a-fA-F]{7,40}$")] | None = None
    """Ignored here: for hosted runs."""


_Limit: TypeAlias = Annotated[int, Field(ge=1)] | None
_Seconds: TypeAlias = Annotated[FiniteFloat, Field(gt=0)] | None
_Dollars: TypeAlias = Annotated[FiniteFloat, Field(gt=0)] | None


class EvaluationSection(_Section):
    """`[evaluation]`: how much, how often, how long, and what passes."""

    limit: int | None = None
    """The first so many rows; left out, 0 or negative: all of them."""
    n: Annotated[int, Field(ge=1)] = 1
    """Attempts at each row."""
    batch_size: Annotated[int, Field(ge=1)] | None = None
    """The most rollouts at once; left out, what the driver takes."""
    adaptive: bool = False
    """Begin with few at once, and let them grow to that until latency or refusals say stop."""
    pass_threshold: FiniteFloat = 1.0
    """A reward of at least this passes."""
    agent_workflow_timeout_s: _Seconds = None
    """Seconds a workflow has."""
    grader_timeout_s: _Seconds = None
    """Seconds a grader has."""
    workflow_failed_reward: FiniteFloat | None = None
    """What a failed workflow counts as in mean and pass rate; left out, it is not counted."""
    max_model_calls: _Limit = None
    """Model calls a rollout may make; one more, and it counts as a failed workflow."""
    max_tokens: _Limit = None
    """Tokens a rollout may take, prompts included; no model call begins beyond them."""
    max_cost: _Dollars = None
    """US dollars a rollout may cost; no model call begins beyond them."""
    run_max_model_calls: _Limit = None
    """Model calls the whole run may make; one more, and it stops with the rest pending."""
    run_max_tokens: _Limit = None
    """Tokens the whole run may take."""
    run_max_cost: _Dollars = None
    """US dollars the whole run may cost."""
    stall_sec: _Seconds = None
    """Name a rollout in the log, once, that went so many seconds without progress."""
    listen: Annotated[str, AfterValidator(check_listen)] | None = None
    """HOST:PORT where rollouts call back; left out, any free port of this machine alone."""
    advertise_url: Annotated[str, AfterValidator(check_advertise_url)] | None = None
    """The address of `listen` as rollouts elsewhere reach it."""


class PriceTable(_Section):
    """What a model costs, in US dollars for a million tokens."""

    prompt: Annotated[FiniteFloat, Field(ge=0)]
    completion: Annotated[FiniteFloat, Field(ge=0)]


class ModelSection(_Section):
    """`[model]`: where the model is, and how it is called."""

    base_url: Annotated[str, StringConstraints(pattern=r"^https?://\S+$")] | None = None
    """An OpenAI-compatible server, `/v1` included."""
    api_key_env: Annotated[str, StringConstraints(pattern=r"^[A-Za-z_]\w*$")] | None = None
    """The environment variable that holds its key."""
    params: dict[str, Any] = Field(default_factory=dict)
    """Fields set on every request, over what the rollout sent."""
    max_retries: Annotated[int, Field(ge=0)] = 3
    """Goes at one call after the first, on 429, 5xx and lost connections."""
    price: PriceTable | None = None
    """US dollars for a million tokens of `prompt` and `completion`; wins over LiteLLM's table."""
    probe: bool = True
    """Ask one plain question before the first rollout; a scripted model is not asked."""


class SecretsSection(_Section):
    """`[secrets]`: which environment variables must be set."""

    required: list[Annotated[str, StringConstraints(pattern=r"^[A-Z][A-Z0-9_]*$")]]
    """Their names; values are never written down."""


class EvalFile(_Section):
    """The whole TOML file; `model_json_schema()` is its schema."""

    experiment: ExperimentSection
    evaluation: EvaluationSection = EvaluationSection()
    model: ModelSection = ModelSection()
    env: dict[str, str] = Field(default_factory=dict)
    """Environment variables for the rollout."""
    secrets: SecretsSection = SecretsSection(required=[])
    advanced: dict[str, Any] = Field(default_factory=dict)
    """Ignored here: for hosted runs."""


@dataclass(frozen=True, slots=True)
class EvalConfig:
    """A checked evaluation file, and the workspace it belongs to."""

    path: Path
    """The file."""
    workspace: Path
    """The nearest directory upward of it that has `rollouts/`."""
    file: EvalFile

    @property
    def rollout_dir(self) -> Path:
        """The directory of the rollout, whose every file is part of what is evaluated."""
        return self.workspace / "rollouts" / self.file.experiment.rollout

    @property
    def entrypoint(self) -> Path:
        """The Python file that defines the rollout."""
        return self.rollout_dir / self.file.experiment.entrypoint

    @property
    def evals_dir(self) -> Path:
        """Where the runs of this workspace lie."""
        return self.workspace / EVALS_DIR

    def model_spec(self, environ: Mapping[str, str]) -> ModelSpec:
        """The model to call; raises ConfigError where its key is not in the environment."""
        model = self.file.model
        key = None if model.api_key_env is None else environ.get(model.api_key_env)
        if model.api_key_env is not None and not key:
            raise ConfigError(
                f"model.api_key_env names {model.api_key_env}, which is not set: export it",
                key="model.api_key_env",
            )
        return ModelSpec(
            path=self.file.experiment.model_path,
            base_url=model.base_url,
            api_key=key,
            params=model.params,
            max_retries=model.max_retries,
            price=None if model.price is None else _price(model.price),
        )

    def budget(self, spent: Spending) -> Budget:
        """What each rollout and the run may take; `spent` is what the run has taken before."""
        limits = self.file.evaluation
        return Budget(
            rollout=ModelLimits(limits.max_model_calls, limits.max_tokens, limits.max_cost),
            run=ModelLimits(limits.run_max_model_calls, limits.run_max_tokens, limits.run_max_cost),
            spent=spent,
        )

    @property
    def listener(self) -> ListenerSpec:
        """Where rollouts call us."""
        evaluation = self.file.evaluation
        return ListenerSpec.parse(
            evaluation.listen,
            advertise_url=evaluation.advertise_url,
            stall_sec=evaluation.stall_sec,
        )

    @property
    def secret_names(self) -> tuple[str, ...]:
        """The variables whose values are never written down."""
        key = self.file.model.api_key_env
        return (*self.file.secrets.required, *([] if key is None else [key]))

    def check_secrets(self, environ: Mapping[str, str]) -> None:
        """Raise ConfigError, naming all of them, where required secrets are not set."""
        missing = [name for name in self.file.secrets.required if not environ.get(name)]
        if missing:
            raise ConfigError(
                f"secrets.required names {', '.join(missing)}: not set in the environment. "
                "Export them and run the same command again.",
                key="secrets.required",
            )


def _price(table: PriceTable) -> ModelPrice:
    return ModelPrice(table.prompt / _MILLION, table.completion / _MILLION)


_MILLION = 1_000_000

EVALS_DIR = Path(".osmosis") / "evals"
"""Where a workspace keeps its runs."""


def load_config(path: str | Path, *, overrides: Mapping[str, Any] | None = None) -> EvalConfig:
    """Read and check an evaluation file.

    `overrides` maps dotted keys to values that win over the file's, as flags do; None means not
    given. Raises ConfigError that names every fault with its dotted key.
    """
    path = Path(path)
    data = _read(path)
    _apply(overrides or {}, data)
    file = _checked(data, path)
    config = EvalConfig(path=path.resolve(), workspace=find_workspace(path.parent), file=file)
    _raise(path, list(_faults(config)))
    return config


def find_workspace(start: Path) -> Path:
    """The nearest directory upward that has `rollouts/`."""
    start = start.resolve()
    for directory in (start, *start.parents):
        if (directory / "rollouts").is_dir():
            return directory
    raise ConfigError(
        f"no workspace at {start} or above: a workspace is a directory that has rollouts/"
    )


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"Config file not found: {path}") from None
    except OSError as error:
        raise ConfigError(f"Cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"Invalid TOML in {path}: {error}") from error


def _apply(overrides: Mapping[str, Any], data: dict[str, Any]) -> None:
    for dotted, value in overrides.items():
        section, _, key = dotted.partition(".")
        table = data.setdefault(section, {})
        if value is not None and isinstance(table, dict):
            table[key] = value


def _checked(data: dict[str, Any], path: Path) -> EvalFile:
    try:
        return EvalFile.model_validate(data)
    except ValidationError as error:
        issues = [_issue(one, path) for one in error.errors(include_url=False)]
        # A list cannot hold one fault twice: both forms of an optional value are refused alike.
        raise _invalid(path, issues) from None


def _raise(path: Path, issues: list[Issue]) -> None:
    if issues:
        raise _invalid(path, issues)


def _invalid(path: Path, issues: list[Issue]) -> ConfigError:
    found = tuple(dict.fromkeys(issues))
    lines = [f"  - {issue.key}: {issue.message}" for issue in found]
    return ConfigError("\n".join([f"Invalid eval config: {path}", *lines]), issues=found)


def _issue(error: ErrorDetails, path: Path) -> Issue:
    location = [str(part) for part in error["loc"]]
    return Issue(".".join(location), _message(error, location, path))


def _message(error: ErrorDetails, location: list[str], path: Path) -> str:
    kind, got = error["type"], _shown(error["input"])
    section, key = location[0], location[-1]
    if kind == "missing" and len(location) == 1:
        return f"Missing [{section}] section in {path}"
    if kind == "missing":
        return f"Missing '{key}' in [{'.'.join(location[:-1])}] section of {path}"
    if kind == "extra_forbidden":
        return "Unrecognized " + ("section" if len(location) == 1 else "key") + _hint(location)
    if kind in ("model_type", "dict_type") and len(location) == 1:
        return f"[{section}] must be a table in {path}"
    if kind in _MUST_BE:
        return f"must be {_MUST_BE[kind]}, got {got}"
    if kind == "greater_than_equal":
        least = error.get("ctx", {}).get("ge")
        return f"must be {'a positive integer' if least == 1 else 'at least 0'}, got {got}"
    if kind == "greater_than":
        return f"must be more than {error.get('ctx', {}).get('gt'):g}, got {got}"
    if kind == "string_too_short":
        return "must not be empty"
    return f"is invalid: {_reason(error)}"


_MUST_BE = {
    "string_type": "a string",
    "int_type": "an integer",
    "int_from_float": "an integer",
    "float_type": "a number",
    "finite_number": "finite",
    "list_type": "a list",
    "dict_type": "a table",
    "model_type": "a table",
}


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _reason(error: ErrorDetails) -> str:
    pattern = error.get("ctx", {}).get("pattern")
    if pattern is not None:
        return f"{_shown(error['input'])} does not match {pattern}"
    return error["msg"].removeprefix("Value error, ")


def _hint(location: list[str]) -> str:
    """The nearest valid name, else the section where a key of that name belongs."""
    top = {name: _keys(field.annotation) for name, field in EvalFile.model_fields.items()}
    sections = top | {"model.price": _keys(PriceTable)}
    known = list(top) if len(location) == 1 else sections[".".join(location[:-1])]
    name = location[-1]
    if hint := did_you_mean(name, known):
        return hint
    for section, keys in sections.items():
        if name in keys:
            return f"; {name!r} belongs to [{section}]"
    return f"; it can be {', '.join(known)}"


def _keys(section: Any) -> list[str]:
    if isinstance(section, type) and issubclass(section, BaseModel):
        return list(section.model_fields)
    return []


def _faults(config: EvalConfig) -> Iterator[Issue]:
    """What one section alone cannot tell: what is on disk, and what contradicts another key."""
    experiment = config.file.experiment
    if experiment.branch and experiment.commit_sha:
        yield Issue("experiment.commit_sha", "give branch or commit_sha, not both")
    yield from _scripted_faults(experiment.model_path)
    yield from _place_faults(config)
    yield from _env_faults(config.file)
    yield from _listener_faults(config)


def _scripted_faults(model_path: str) -> Iterator[Issue]:
    _, scripted, target = model_path.partition("scripted:")
    module, _, attribute = target.rpartition(":")
    if scripted and not (module and attribute):
        yield Issue(
            "experiment.model_path",
            f"is invalid: {model_path!r} must be 'scripted:module:attr'",
        )


def _place_faults(config: EvalConfig) -> Iterator[Issue]:
    rollouts = config.rollout_dir.parent
    if not config.rollout_dir.is_dir():
        names = sorted(entry.name for entry in rollouts.iterdir() if entry.is_dir())
        hint = did_you_mean(config.rollout_dir.name, names) or f"; there are {names}"
        yield Issue("experiment.rollout", f"is invalid: no directory {config.rollout_dir}{hint}")
    elif not config.entrypoint.resolve().is_relative_to(config.rollout_dir.resolve()):
        yield Issue("experiment.entrypoint", f"is invalid: must stay inside {config.rollout_dir}")
    elif not config.entrypoint.is_file():
        there = (file.name for file in config.rollout_dir.glob("*.py"))
        hint = did_you_mean(config.file.experiment.entrypoint, there)
        yield Issue("experiment.entrypoint", f"is invalid: no file {config.entrypoint}{hint}")


def _listener_faults(config: EvalConfig) -> Iterator[Issue]:
    listener, listen = config.listener, config.file.evaluation.listen
    if listener.advertise_url is not None and listen is None:
        yield Issue(
            "evaluation.advertise_url",
            "goes with evaluation.listen, which says the port that it leads to",
        )
    if listener.is_wildcard and listener.advertise_url is None:
        yield Issue(
            "evaluation.listen",
            f"{listen!r} is every address of this machine: say with evaluation.advertise_url "
            "which of them rollouts are to call, such as http://my-machine:9000",
        )


_ENV_NAME = re.compile(r"[A-Z_][A-Z0-9_]*")


def _env_faults(file: EvalFile) -> Iterator[Issue]:
    required = file.secrets.required
    for name in file.env:
        if not _ENV_NAME.fullmatch(name):
            yield Issue(f"env.{name}", f"is invalid: must match {_ENV_NAME.pattern}")
        if name.startswith("_OSMOSIS_"):
            yield Issue(f"env.{name}", "is invalid: names with _OSMOSIS_ are reserved")
        if name in required:
            yield Issue(f"env.{name}", "is also in secrets.required; keep it in one of the two")
    for name in sorted({name for name in required if required.count(name) > 1}):
        yield Issue("secrets.required", f"names {name} twice")
