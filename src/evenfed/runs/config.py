"""What a run is made of: a TOML file, read strictly."""

from __future__ import annotations

import os
import platform
import tomllib
from contextlib import suppress
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import tomli_w
import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError

import evenfed
from evenfed.core import models
from evenfed.core.errors import ConfigError, complaints, refuse, suggest
from evenfed.data.partition import parse_partition
from evenfed.data.registry import check_options, source_options
from evenfed.data.silo import PLACES, SILOS, SiloSchema
from evenfed.engines.federation import EngineOptions
from evenfed.engines.participation import Participation
from evenfed.methods.base import Method
from evenfed.methods.registry import build, nested

OWN_MODEL = "own"
"""The name of a module that was given in Python."""
SECTIONS = ("method", "data", "model", "participation", "engine")


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", validate_assignment=True)


class _Named(BaseModel):
    """A name and whatever options the named thing takes; those are checked when it is built."""

    model_config = ConfigDict(extra="allow")
    name: str

    @property
    def options(self) -> dict[str, Any]:
        """The options beside the name."""
        return dict(self.model_extra or {})


class MethodConfig(_Named):
    """`[method]`: name and hyperparameters."""

    name: str = "fedavg"

    def completed(self) -> MethodConfig:
        """A copy with every hyperparameter written out."""
        return method_table(build(self.name, self.options))


class ModelConfig(_Named):
    """`[model]`: name and sizes; `auto` fits the data."""

    name: str = "auto"

    def check(self) -> None:
        """Refuse a name or options that do not exist; `auto` depends on the data."""
        if self.name not in ("auto", OWN_MODEL):
            models.check_options(self.name, self.options)


class DataConfig(_Named):
    """`[data]`: source, clients, partition, and the source's own options."""

    name: str = "loans"
    clients: int | None = Field(default=None, ge=1)
    partition: str | None = None

    def check(self) -> None:
        """Refuse a source, options or a partition that do not exist."""
        if self.name == SILOS:
            if self.options.get("files"):
                SiloSchema.of_config(self.options)
            return
        wrong = complaints(lambda: check_options(self.name, self.options))
        if self.partition is not None:
            wrong += complaints(lambda: parse_partition(str(self.partition)))
        if wrong:
            refuse(wrong)

    def anchored(self, folder: Path) -> Self:
        """As a file in `folder` says it: `base` leads from there to relative silo files."""
        if not self.relative_files:
            return self
        here = os.path.realpath(str(self.options.get("base", ".")))
        base = Path(os.path.relpath(here, os.path.realpath(folder))).as_posix()
        return type(self)(**{**self.model_dump(exclude_none=True), "base": base})

    @property
    def relative_files(self) -> list[str]:
        """Silo files that are named from `base`, by default where the command was given."""
        files = self.options.get("files", []) if self.name == SILOS else []
        named = [files] if isinstance(files, str) else files
        return [str(file) for file in named if not Path(file).is_absolute()]

    def completed(self) -> DataConfig:
        """A copy with the source's options written out, where a file can hold their defaults."""
        if self.name == SILOS:
            where = {k: v for k, v in self.options.items() if k in PLACES}
            schema = SiloSchema.of_config(self.options)
            return DataConfig(name=SILOS, **plain({**where, **schema.table()}))
        defaults = {k: v for k, v in source_options(self.name).items() if _is_plain(v)}
        given = self.model_dump(exclude_none=True)
        return DataConfig(**{**plain(defaults), **given})


class CommonConfig(_Strict):
    """What a run and a study have in common."""

    model: ModelConfig = Field(default_factory=ModelConfig)
    participation: dict[str, Any] = Field(default_factory=dict)
    engine: dict[str, Any] = Field(default_factory=dict)
    rounds: int = Field(default=30, ge=1)
    evaluate_every: int = Field(default=5, ge=0)
    evaluate_clients: int = Field(default=0, ge=0)
    checkpoint_every: int = Field(default=5, ge=1)
    tail: float = Field(default=0.1, gt=0, le=1)
    geometry: bool | Literal["auto", "panel", "few"] = "panel"
    """Whether loss geometry is measured at the end, which takes products with Hessians.

    "panel": of SER alone, at a few clients; "few": there of any method, as a study asks of what SER
    is compared with; "auto": where every client uses one model.
    """
    excess: bool = False
    """Whether excess risks (FAA) are measured at the end, which trains a model a true cluster."""
    versions: dict[str, str] = Field(default_factory=dict)

    def built_participation(self) -> Participation:
        """The participation."""
        return _from_table(Participation, self.participation, "participation")  # type: ignore[no-any-return]

    def built_engine(self) -> EngineOptions:
        """The engine's options."""
        return _from_table(EngineOptions, self.engine, "engine")  # type: ignore[no-any-return]

    def completed(self) -> Self:
        """A copy in which every default is written out, with the versions that ran."""
        return self.model_copy(
            update={
                "participation": asdict(self.built_participation()),
                "engine": asdict(self.built_engine()),
                "versions": versions(),
            }
        )

    def toml(self) -> str:
        """The file's text."""
        return tomli_w.dumps(plain(self.model_dump(exclude_none=True)))


class RunConfig(CommonConfig):
    """A run: one method, one dataset, one seed."""

    method: MethodConfig = Field(default_factory=MethodConfig)
    data: DataConfig = Field(default_factory=DataConfig)
    seed: int = Field(default=0, ge=0)
    local_reference: bool | Literal["auto"] = "auto"
    """Whether Local is trained after the run, as a reference; "auto": unless it costs far more."""

    def anchored(self, folder: Path) -> Self:
        """As a file in `folder` says it; see `DataConfig`."""
        return self.model_copy(update={"data": self.data.anchored(folder)})

    def built_method(self) -> Method:
        """The method with its hyperparameters."""
        return build(self.method.name, self.method.options)

    def check_method(self) -> None:
        """Refuse a method or options of it that do not exist; keys of a config may be meant."""
        others = [key for key in RunConfig.model_fields if key not in SECTIONS]
        others += ["data.clients", "data.partition"]
        build(self.method.name, self.method.options, others)

    def completed(self) -> Self:
        """A copy in which every default is written out, with the versions that ran."""
        written = {"method": self.method.completed(), "data": self.data.completed()}
        return super().completed().model_copy(update=written)


def asdict_options(method: Method) -> dict[str, Any]:
    """Hyperparameters of a method as nested plain values."""
    return {
        f.name: asdict(value)
        if hasattr(value := getattr(method, f.name), "__dataclass_fields__")
        else value
        for f in fields(method)
        if f.init
    }


def versions() -> dict[str, str]:
    """Versions that a result depends on."""
    return {
        "evenfed": evenfed.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
    }


def plain(value: Any) -> Any:
    """Only what TOML can hold: tuples become lists, None disappears."""
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items() if v is not None}
    if isinstance(value, tuple | list):
        return [plain(v) for v in value]
    return value


def _is_plain(value: object) -> bool:
    """Whether TOML can hold a value (None: by leaving it out)."""
    if isinstance(value, tuple | list):
        return all(_is_plain(v) for v in value)
    return value is None or isinstance(value, str | int | float | bool)


def _from_table(cls: type[Any], table: dict[str, Any], section: str) -> Any:
    known = {f.name for f in fields(cls)}
    wrong = [
        f"unknown key '{section}.{key}'.{suggest(key, known)}" for key in table if key not in known
    ]

    def made() -> Any:
        try:
            return cls(**{key: value for key, value in table.items() if key in known})
        except TypeError as error:
            raise ConfigError(f"[{section}]: {error}") from error

    if wrong:
        refuse([*wrong, *complaints(made)])
    return made()


def parse(table: dict[str, Any], source: str = "config", *, deep: bool = False) -> RunConfig:
    """Check a table read from TOML; everything that is wrong in it is refused at once.

    `deep`: also names and options of method, data and model, which may not be known where a
    config is only read; without it they are refused when those are built.

    Examples
    --------
    >>> parse({"round": 3})
    Traceback (most recent call last):
    ...
    evenfed.core.errors.ConfigError: config: unknown key 'round'. Did you mean 'rounds'?
    """
    for section in ("method", "data", "model"):
        if isinstance(table.get(section), str):
            table = {**table, section: {"name": table[section]}}
    wrong, config = [], RunConfig()
    try:
        config = RunConfig.model_validate(table)
    except ValidationError as error:
        wrong = [f"{source}: {text}" for text in all_problems(error, RunConfig)]
        # the rest is looked at without the keys that are refused
        refused = {str(detail["loc"][0]) for detail in error.errors()}
        kept = {k: v for k, v in table.items() if k not in refused}
        with suppress(ValidationError):
            config = RunConfig.model_validate(kept)
    wrong += complaints(config.built_participation, config.built_engine)
    if deep:
        wrong += complaints(config.check_method, config.data.check, config.model.check)
    if wrong:
        refuse(wrong)
    return config


def configured(**keys: Any) -> RunConfig:
    """A config of values given in Python; one that cannot be is named."""
    try:
        return RunConfig(**keys)
    except ValidationError as error:
        refuse(all_problems(error, RunConfig))


def all_problems(error: ValidationError, model: type[BaseModel]) -> list[str]:
    """All complaints about a table, with the keys that were probably meant."""
    found: list[str] = []
    either: dict[str, list[str]] = {}
    for detail in error.errors():
        where, last = ".".join(map(str, detail["loc"])), str(detail["loc"][-1])
        if detail["type"] == "extra_forbidden":
            found.append(f"unknown key '{where}'.{suggest(last, model.model_fields)}")
        elif last == "bool" or last.startswith("literal["):  # one of what a value may be
            may = detail["msg"].removeprefix("Input should be ").partition(", unable")[0]
            either.setdefault(where.removesuffix(f".{last}"), []).append(may)
        else:
            found.append(f"'{where}': {detail['msg']}")
    return found + [f"'{k}': Input should be {' or '.join(may)}" for k, may in either.items()]


def read(path: Path) -> dict[str, Any]:
    """Read a TOML file into a table; `base` of silo files leads from the file to their folder."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ConfigError(f"config file '{path}' does not exist") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"config file '{path}' is not valid TOML: {error}") from error
    several = table.get("datasets")
    for data in (table.get("data"), *(several if isinstance(several, list) else ())):
        if isinstance(data, dict) and isinstance(data.get("base"), str):
            base = os.path.relpath(path.parent / data.pop("base"))
            data |= {} if base == "." else {"base": base}
    return table


def with_settings(table: dict[str, Any], settings: list[str]) -> dict[str, Any]:
    """Apply `key=value` settings of a command line to a table.

    `data.x`, `model.x`, `participation.x`, `engine.x` and the top-level keys name themselves;
    everything else is an option of the method (`mu=0.1`, `local.lr=0.05`).

    Examples
    --------
    >>> with_settings({}, ["mu=0.1", "local.lr=0.5", "data.clients=4", "rounds=3"])
    {'method': {'mu': 0.1, 'local.lr': 0.5}, 'data': {'clients': 4}, 'rounds': 3}
    """
    result = {k: dict(v) if isinstance(v, dict) else v for k, v in table.items()}
    if bad := [s for s in settings if not all(s.partition("=")[:2])]:
        refuse(f"--set takes key=value, not '{setting}'" for setting in bad)
    for setting in settings:
        key, _, text = setting.partition("=")
        head, _, tail = key.partition(".")
        value = toml_value(text)
        if head in SECTIONS and tail:
            section = result.setdefault(head, {})
            if isinstance(section, str):
                section = result[head] = {"name": section}
            section[tail] = value
            if key == "data.files":  # named from where the command is given
                section.pop("base", None)
        elif not tail and head in RunConfig.model_fields and head not in SECTIONS:
            result[head] = value
        else:
            section = result.setdefault("method", {})
            if isinstance(section, str):
                section = result["method"] = {"name": section}
            section[key] = value
    return result


def toml_value(text: str) -> Any:
    """A TOML value; bare words are strings."""
    try:
        return tomllib.loads(f"x = {text}")["x"]
    except tomllib.TOMLDecodeError:
        return text


def method_table(method: Method) -> MethodConfig:
    """The `[method]` of an instance."""
    return MethodConfig(name=method.name, **plain(nested(type(method), asdict_options(method))))
