from __future__ import annotations

from pathlib import Path

import pytest

import evenfed as ef
from evenfed.core.errors import ConfigError, ConfigProblemsError
from evenfed.runs.config import RunConfig, method_table, parse, read, with_settings
from evenfed.runs.plan import named, parse_study, split_list, with_study_settings


@pytest.mark.parametrize(
    ("table", "complaint"),
    [
        ({"round": 3}, "unknown key 'round'. Did you mean 'rounds'?"),
        ({"rounds": 0}, "'rounds'"),
        ({"rounds": "many"}, "'rounds'"),
        ({"participation": {"fractions": 0.5}}, "'participation.fractions'. Did you mean"),
        ({"engine": {"engin": "auto"}}, "'engine.engin'. Did you mean"),
        ({"engine": {"engine": "warp"}}, "engine 'warp' is unknown"),
        ({"participation": {"fraction": 2.0}}, "participation.fraction"),
        ({"tail": 0}, "'tail'"),
        (
            {"geometry": "some"},
            "'geometry': Input should be a valid boolean or 'auto', 'panel' or 'few'",
        ),
        (
            {"local_reference": "maybe"},
            "'local_reference': Input should be a valid boolean or 'auto'",
        ),
        ({"bool": 1}, "unknown key 'bool'"),
    ],
)
def test_what_is_wrong_in_a_config_is_named(table: dict[str, object], complaint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(table)
    assert complaint in str(caught.value)


def test_everything_wrong_in_a_config_is_told_at_once() -> None:
    table = {
        "round": 3, "seed": -1, "engine": {"engine": "warp", "chunk": -1},
        "participation": {"fraction": 2.0, "late": "never", "fractions": 1},
        "method": {"name": "fedprox", "muu": 1, "local": {"lr": "fast", "epoch": 2}},
        "data": {"name": "loans", "sensitiv": "sex", "partition": "iidd"},
        "model": {"name": "mlp", "hiden": 3},
    }  # fmt: skip
    with pytest.raises(ConfigProblemsError) as caught:
        parse(table, "c.toml", deep=True)
    parts = [
        "c.toml: unknown key 'round'. Did you mean 'rounds'?", "c.toml: 'seed'",
        "'participation.fractions'", "participation.fraction must be", "participation.late may be",
        "engine 'warp' is unknown", "workers and chunk",
        "has no option 'muu'. Did you mean 'mu'?", "option 'local.lr' is 'fast'",
        "has no option 'local.epoch'. Did you mean 'local.epochs'?",
        "has no option 'sensitiv'", "partition 'iidd'", "Model 'mlp' has no option 'hiden'",
    ]  # fmt: skip
    for part in parts:
        assert sum(part in problem for problem in caught.value.problems) == 1, part
    assert len(caught.value.problems) == len(parts)


def test_everything_wrong_in_a_study_is_told_at_once() -> None:
    with pytest.raises(ConfigProblemsError) as caught:
        parse_study({"methods": "fedavgg,qffl:qq=1", "datasets": "loanz,digits:clientz=3"})
    text = "\n".join(caught.value.problems)
    for part in ("'fedavgg'", "no option 'qq'", "no dataset 'loanz'", "no option 'clientz'"):
        assert part in text
    with pytest.raises(ConfigProblemsError) as caught:
        parse_study({"methods": "fedavg", "datasets": "loans", "sed": 1, "rounds": 0})
    assert len(caught.value.problems) == 2


def test_of_many_names_a_few_near_ones_are_told() -> None:
    with pytest.raises(ConfigError) as caught:
        parse({"method": {"name": "fedavg", "xyz": 1}}, deep=True)
    text = str(caught.value)
    assert "Nearest of" in text
    assert text.count(",") == 4
    with pytest.raises(ConfigError, match=r"Did you mean 'data\.clients'"):
        parse(with_settings({}, ["client=3"]), deep=True)


def test_unknown_options_of_method_and_dataset_are_refused_when_built() -> None:
    with pytest.raises(ConfigError, match=r"has no option 'muu'. Did you mean 'mu'"):
        parse({"method": {"name": "fedprox", "muu": 1}}).built_method()
    with pytest.raises(ConfigError, match="there is no dataset 'loanz'"):
        parse({"data": "loanz"}).completed()


def test_a_completed_config_survives_the_file_and_builds_the_same_method(tmp_path: Path) -> None:
    settings = ["mu=0.3", "lr=0.05", "data.clients=4", "participation.fraction=0.5", "seed=7"]
    table = with_settings({"method": "fedprox", "data": "loans"}, settings)
    config = parse(table).completed()
    (tmp_path / "c.toml").write_text(config.toml())
    again = parse(read(tmp_path / "c.toml"))
    assert again == config
    assert again.built_method() == ef.FedProx(mu=0.3, local=ef.LocalTraining(lr=0.05))
    assert again.data.options["sensitive"] == "race"
    assert set(again.versions) == {"evenfed", "python", "torch", "numpy"}


def test_method_table_of_an_instance_builds_it_again() -> None:
    method = ef.QFFL(q=2.5, local=ef.LocalTraining(lr=0.2, batch=8))
    assert RunConfig(method=method_table(method)).built_method() == method


@pytest.mark.parametrize("setting", ["mu", "=3", ""])
def test_settings_without_key_or_value_are_refused(setting: str) -> None:
    with pytest.raises(ConfigError, match="key=value"):
        with_settings({}, [setting])
    with pytest.raises(ConfigError, match="key=value"):
        with_study_settings({}, [setting])


def test_files_that_are_missing_or_broken_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        read(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("rounds = = 3")
    with pytest.raises(ConfigError, match=r"bad.toml' is not valid TOML"):
        read(tmp_path / "bad.toml")


def test_lists_keep_options_with_their_name_and_commas_in_quotes() -> None:
    text = 'fedavg,qffl:q=2,lr=0.1,digits:rotations="0:7,90:2"'
    assert split_list(text) == ["fedavg", "qffl:q=2,lr=0.1", 'digits:rotations="0:7,90:2"']
    assert named("x:partition=dirichlet:label:0.5")["partition"] == "dirichlet:label:0.5"
    with pytest.raises(ConfigError, match="option=value"):
        named("x:y")


@pytest.mark.parametrize(
    ("table", "complaint"),
    [
        ({"datasets": "loans"}, "a study needs methods"),
        ({"methods": "fedavg", "datasets": []}, "a study needs datasets"),
        ({"methods": "fedavg,fedavg", "datasets": "loans"}, "twice with the same options"),
        ({"methods": "fedavg:mu=1", "datasets": "loans"}, "has no option 'mu'"),
        ({"methods": "fedavgg", "datasets": "loans"}, "Did you mean 'fedavg'?"),
        ({"methods": "fedavg", "datasets": "loans:method.q=1"}, "has no option 'q'"),
        ({"methods": "fedavg", "datasets": "loans", "seeds": [1, 1]}, "seeds must differ"),
        ({"methods": "fedavg", "datasets": "loans", "sed": 1}, "unknown key 'sed'"),
    ],
)
def test_what_is_wrong_in_a_study_is_named(table: dict[str, object], complaint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_study(table)
    assert complaint in str(caught.value)


def test_labels_name_just_the_options_that_differ() -> None:
    config = parse_study(
        {"methods": "qffl:q=1,lr=0.3,qffl:q=2,lr=0.3,fedavg", "datasets": "loans:clients=3,loans"}
    )
    assert config.method_labels() == [
        "qffl (q=1.0)", "qffl (q=2.0)", "fedavg", "local", "centralized",
    ]  # fmt: skip
    assert config.dataset_labels() == ["loans (clients=3)", "loans"]
    assert config.planned()[0].name == "qffl-q=1.0-loans-clients=3-0"


def test_a_dataset_of_a_study_may_have_its_own_rounds_and_rate() -> None:
    table = with_study_settings(
        {"methods": "fedavg,fedprox", "datasets": "loans,digits", "rounds": 9},
        ["digits.rounds=5", "digits.method.lr=0.5", "fedprox.mu=0.2", "lr=0.1", "data.clients=3"],
    )
    plans = {(p.method, p.dataset): p.config for p in parse_study(table).planned()}
    assert plans["fedavg", "digits"].rounds == 5
    assert plans["fedavg", "loans"].rounds == 9
    assert plans["fedprox", "digits"].built_method() == ef.FedProx(
        mu=0.2, local=ef.LocalTraining(lr=0.5)
    )
    assert plans["fedavg", "loans"].built_method() == ef.FedAvg()
    assert plans["fedavg", "loans"].data.clients == 3
    assert "method" not in plans["fedavg", "digits"].data.options
