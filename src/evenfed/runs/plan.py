"""What a study is made of: methods x datasets x seeds, read from a TOML file or from words."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, ValidationError, field_validator

from evenfed.core.errors import ConfigError, complaints, refuse, suggest
from evenfed.methods.base import Method
from evenfed.methods.registry import methods as known_methods
from evenfed.methods.registry import nested
from evenfed.runs.config import (
    SECTIONS,
    CommonConfig,
    DataConfig,
    MethodConfig,
    ModelConfig,
    RunConfig,
    all_problems,
    method_table,
    plain,
    toml_value,
)
from evenfed.runs.tune_config import TuneConfig as TuneConfig
from evenfed.runs.twins import with_twins

_INSTEAD = ("rounds", "model", "geometry", "excess")
_OWN = {"method", "methods", *_INSTEAD}
"""What the entry of a dataset in a study holds beside the data's own options."""
_OPTION = re.compile(r"^\s*[A-Za-z_][\w.]*\s*=")


@dataclass(frozen=True)
class PlannedRun:
    """One run of a study; `method` and `dataset` are the labels in its table."""

    method: str
    dataset: str
    seed: int
    config: RunConfig

    @property
    def name(self) -> str:
        """The name of its folder."""
        return re.sub(r"[^\w.=]+", "-", f"{self.method}-{self.dataset}-{self.seed}")

    def using(self, options: Mapping[str, Any]) -> PlannedRun:
        """The same run with other options of its method (dotted names)."""
        table = method_entry({**self.config.method.model_dump(), **options})
        config = self.config.model_copy(update={"method": MethodConfig(**table)})
        return replace(self, config=config)


class StudyData(DataConfig):
    """A dataset of a study, with what every method does differently on it.

    Parameters
    ----------
    method : dict
        Options of every method on these data, e.g. the rate that was tuned for them.
    rounds, model, geometry, excess : optional
        What holds on these data, instead of the study's.
    methods : list of str, optional
        Names of the study's methods that run on these data, instead of all; references always do.
    """

    method: dict[str, Any] = Field(default_factory=dict)
    rounds: int | None = Field(default=None, ge=1)
    model: ModelConfig | None = None
    geometry: bool | Literal["auto", "panel", "few"] | None = None
    excess: bool | None = None
    methods: list[str] | None = Field(default=None, min_length=1)

    @field_validator("model", mode="before")
    @classmethod
    def _named(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value

    @property
    def data(self) -> DataConfig:
        """The data alone."""
        return DataConfig(**self.model_dump(exclude=_OWN))

    def completed(self) -> StudyData:
        """A copy with the source's options written out."""
        return StudyData(**self.data.completed().model_dump(), **self.model_dump(include=_OWN))

    def instead(self) -> dict[str, Any]:
        """What holds on these data instead of the study's own."""
        given = {name: getattr(self, name) for name in _INSTEAD}
        return {name: value for name, value in given.items() if value is not None}


class StudyConfig(CommonConfig):
    """A study: several runs that are compared.

    Parameters
    ----------
    references : list of str
        Methods that stand in the table for comparison only: they are never marked as the best.
    """

    methods: list[MethodConfig] = Field(min_length=1)
    datasets: list[StudyData] = Field(min_length=1)
    seeds: list[int] = Field(default_factory=lambda: [0, 1, 2], min_length=1)
    references: list[str] = Field(default_factory=list)
    tune: TuneConfig | None = None

    def completed(self) -> Self:
        """A copy in which every default is written out, with the versions that ran."""
        written = {
            "methods": [m.completed() for m in self.methods],
            "datasets": [d.completed() for d in self.datasets],
        }
        return super().completed().model_copy(update=written)

    def anchored(self, folder: Path) -> Self:
        """As a file in `folder` says it; see `DataConfig`."""
        return self.model_copy(update={"datasets": [d.anchored(folder) for d in self.datasets]})

    def method_labels(self) -> list[str]:
        """Names of the methods, with those options in which two of one name differ."""
        return _labels([m.completed().model_dump() for m in self.methods], "method")

    def dataset_labels(self) -> list[str]:
        """Names of the datasets, with those options in which two of one name differ."""
        return _labels([plain(d.model_dump(exclude={"base"})) for d in self.datasets], "dataset")

    def planned(self) -> list[PlannedRun]:
        """All runs; those on the same data follow each other."""
        shared = {name: getattr(self, name) for name in CommonConfig.model_fields}
        methods = list(zip(self.method_labels(), self.methods, strict=True))
        return with_twins(
            PlannedRun(
                method_label,
                label,
                seed,
                RunConfig(
                    **{**shared, **data.instead()},
                    method=MethodConfig(**method_entry({**method.model_dump(), **data.method})),
                    data=data.data,
                    seed=seed,
                    local_reference=False,  # it is a row of the study
                ),
            )
            for label, data in zip(self.dataset_labels(), self.datasets, strict=True)
            for seed in self.seeds
            for method_label, method in methods
            if data.methods is None or method.name in (*data.methods, *self.references)
        )


REFERENCES = ("local", "centralized")
"""Methods that every table has: what clients reach alone, and what pooling all data would give."""


def expanded(table: Mapping[str, Any]) -> dict[str, Any]:
    """Replace the method `all` by every registered one, and add the reference rows.

    `references = []` leaves the reference rows out.

    Examples
    --------
    >>> [m["name"] for m in expanded({"methods": ["fedavg", "local"]})["methods"]]
    ['fedavg', 'local', 'centralized']
    """
    result = dict(table)
    entries = [method_entry(m) for m in _entries(result.get("methods", []))]
    wanted: list[dict[str, Any]] = []
    for entry in entries:
        if entry["name"] == "all":
            options = {k: v for k, v in entry.items() if k != "name"}
            listed = {e["name"] for e in entries}
            names = [n for n in sorted(known_methods()) if n not in listed | set(REFERENCES)]
            wanted += [method_entry({"name": name, **options}) for name in names]
        else:
            wanted.append(entry)
    present = {entry["name"] for entry in wanted}
    references = result.get("references")
    if references is None:
        references = [name for name in REFERENCES if name not in present] if wanted else []
    if not isinstance(references, list):
        raise ConfigError(f"references must be a list of methods' names, not {references!r}")
    added = [method_entry(name) for name in references if name not in present]
    return {**result, "methods": [*wanted, *added], "references": references}


def _labels(tables: list[dict[str, Any]], what: str) -> list[str]:
    flat = [dict(_flat(table)) for table in tables]
    result = []
    for own in flat:
        same = [other for other in flat if other["name"] == own["name"]]
        keys = dict.fromkeys(key for other in same for key in other)
        differing = [k for k in keys if any(o.get(k) != own.get(k) for o in same)]
        options = ", ".join(f"{k.rpartition('.')[2]}={own[k]}" for k in differing if k in own)
        result.append(f"{own['name']} ({options})" if options else own["name"])
    for label, times in Counter(result).items():
        if times > 1:
            raise ConfigError(f"the study has the {what} '{label}' twice with the same options")
    return result


def _flat(table: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def split_list(text: str) -> list[str]:
    """Split at commas outside quotes; `k=v` parts stay with the name before them.

    Examples
    --------
    >>> split_list("fedavg,qffl:q=2,lr=0.1,local")
    ['fedavg', 'qffl:q=2,lr=0.1', 'local']
    """
    parts = [p for p in re.split(r""",(?=(?:[^"]*"[^"]*")*[^"]*$)""", text) if p.strip()]
    result: list[str] = []
    for part in parts:
        if result and _OPTION.match(part):
            result[-1] += f",{part}"
        else:
            result.append(part.strip())
    return result


def named(text: str) -> dict[str, Any]:
    """Read `name` or `name:option=value,option=value`; values are TOML, bare words are strings.

    Examples
    --------
    >>> named('digits:clients=10,rotations="0:7,90:2,180:1"')
    {'name': 'digits', 'clients': 10, 'rotations': '0:7,90:2,180:1'}
    """
    name, _, rest = text.strip().partition(":")
    table: dict[str, Any] = {"name": name.strip()}
    for part in re.split(r""",(?=(?:[^"]*"[^"]*")*[^"]*$)""", rest) if rest else []:
        key, equals, value = part.partition("=")
        if not equals or not key.strip():
            raise ConfigError(
                f"cannot read '{text}': after the colon come option=value pairs, not '{part}' "
                '(quote values that hold a comma: rotations="0:7,90:2,180:1")'
            )
        table[key.strip()] = toml_value(value.strip())
    return table


def method_entry(entry: str | Method | Mapping[str, Any]) -> dict[str, Any]:
    """The table of a method given as a word, an instance or a table."""
    if isinstance(entry, Method):
        if known_methods().get(entry.name) is not type(entry):
            raise ConfigError(
                f"method '{entry.name}' is not registered; decorate its class with "
                "@evenfed.register so that a study can build it again"
            )
        return method_table(entry).model_dump()
    table = named(entry) if isinstance(entry, str) else dict(entry)
    name, options = table.pop("name", None), table
    if name is None:
        raise ConfigError(f"a method of the study has no name: {json.dumps(plain(options))}")
    cls = known_methods().get(name)
    return {"name": name, **(options if cls is None else nested(cls, options))}


def parse_study(table: Mapping[str, Any], source: str = "study") -> StudyConfig:
    """Check a table read from TOML or made from words; everything wrong in it is refused here.

    Examples
    --------
    >>> config = parse_study({"methods": ["fedavg", "qffl:q=2"], "datasets": ["synthetic"]})
    >>> [run.name for run in config.planned()][:2]
    ['fedavg-synthetic-0', 'qffl-synthetic-0']
    """
    table = dict(table)
    if isinstance(table.get("model"), str):
        table["model"] = {"name": table["model"]}
    if isinstance(table.get("tune"), str):
        table["tune"] = {"on": table["tune"]}
    if table.get("methods"):
        table = expanded(table)
    for key in ("methods", "datasets"):
        value = table.get(key)
        if not value:
            raise ConfigError(f"{source}: a study needs {key}; give at least one")
        if isinstance(value, str):
            table[key] = value = split_list(value)
        if isinstance(value, Sequence):
            read = method_entry if key == "methods" else data_entry
            table[key] = [read(entry) for entry in value]
    try:
        config = StudyConfig.model_validate(table)
    except ValidationError as error:
        refuse(f"{source}: {text}" for text in all_problems(error, StudyConfig))
    if len(set(config.seeds)) < len(config.seeds) or min(config.seeds) < 0:
        raise ConfigError(f"{source}: seeds must differ and not be negative: {config.seeds}")
    checks = [config.built_participation, config.built_engine, config.model.check]
    checks += [method.completed for method in config.methods]
    checks += [data.data.check for data in config.datasets]
    if wrong := complaints(*checks):
        refuse(wrong)
    if config.built_engine().engine == "flower":
        raise ConfigError(
            f"{source}: engine 'flower' carries out single runs: `evenfed run --engine flower`, or "
            "`evenfed flower submit` for each; studies take auto, vectorized or sequential"
        )
    _check_methods_of_data(config, source)
    names: set[str] = set()
    plans = config.planned()
    if wrong := complaints(*(plan.config.built_method for plan in plans)):
        refuse(wrong)
    for plan in plans:
        if plan.name in names:
            raise ConfigError(f"{source}: two runs would have the folder '{plan.name}'")
        names.add(plan.name)
    return config


def _check_methods_of_data(config: StudyConfig, source: str) -> None:
    known = [method.name for method in config.methods]
    wanted = [(data.name, name) for data in config.datasets for name in data.methods or ()]
    for dataset, name in wanted:
        if name not in known:
            raise ConfigError(
                f"{source}: dataset '{dataset}' asks for method '{name}', which is not in the "
                f"study.{suggest(name, known)}"
            )


def data_entry(entry: str | Mapping[str, Any]) -> dict[str, Any]:
    """The table of a dataset given as a word or a table; `method.x` is an option of all methods."""
    table = named(entry) if isinstance(entry, str) else dict(entry)
    result = {k: v for k, v in table.items() if not k.startswith("method.")}
    for key in table.keys() - result.keys():
        result["method"] = {**result.get("method", {}), key.removeprefix("method."): table[key]}
    return result


def with_study_settings(table: Mapping[str, Any], settings: Sequence[str]) -> dict[str, Any]:
    """Apply `key=value` settings of a command line to the table of a study.

    `qffl.q=2` sets an option of the method of that name, `digits.clients=4` one of the dataset,
    `data.x` one of every dataset, `model.x`, `participation.x`, `engine.x` and the top-level keys
    name themselves, and everything else is an option of every method.

    Examples
    --------
    >>> study = {"methods": ["fedavg", "qffl"], "datasets": ["loans"]}
    >>> with_study_settings(study, ["qffl.q=2", "lr=0.5", "loans.clients=4"])["methods"][:2]
    [{'name': 'fedavg', 'local': {'lr': 0.5}}, {'name': 'qffl', 'q': 2, 'local': {'lr': 0.5}}]
    """
    result = {k: dict(v) if isinstance(v, dict) else v for k, v in expanded(table).items()}
    methods = [method_entry(m) for m in _entries(result.get("methods", []))]
    datasets = [data_entry(d) for d in _entries(result.get("datasets", []))]
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not equals or not key:
            raise ConfigError(f"--set takes key=value, not '{setting}'")
        head, _, tail = key.partition(".")
        value = toml_value(text)
        if tail and (chosen := [d for d in datasets if head in ("data", d["name"])]):
            for data in chosen:
                data.update(data_entry({**data, tail: value}))
        elif tail and head in SECTIONS:
            section = result.setdefault(head, {})
            if isinstance(section, str):
                section = result[head] = {"name": section}
            section[tail] = value
        elif not tail and head in StudyConfig.model_fields:
            result[head] = value
        else:
            owners = [m for m in methods if tail and m["name"] == head]
            option = tail if owners else key
            for method in owners or methods:
                merged = {**method, option: value}
                method.clear()
                method.update(method_entry(merged))
    return {**result, "methods": methods, "datasets": datasets}


def _entries(value: Any) -> list[Any]:
    return split_list(value) if isinstance(value, str) else list(value)
