"""Counts come from the README of the data folder, published sizes from HetPFL's release."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from evenfed.core.errors import ConfigError, DataError
from evenfed.data.dataset import SPLITS, FederatedDataset
from evenfed.data.files import locate
from evenfed.data.partition import IID, ByColumn
from evenfed.data.sources import acs_income, adult, bank, compas, heart_disease, loans

Needs = Callable[..., None]
TABULAR = (loans, compas, adult, bank, acs_income, heart_disease)

FILES = {
    "compas": ("compas/compas-scores-two-years.csv.gz",),
    "adult": ("adult/adult.data.gz", "adult/adult.test.gz"),
    "bank": ("bank/bank-full.csv.gz",),
    "heart_disease": tuple(f"heart_disease/{name}" for name, _ in heart_disease.FILES.values()),
    "acs_income": ("acs_income/acs_income_2018.npz",),
}


def sizes(data: FederatedDataset, *splits: Any) -> list[int]:
    return [sum(len(client.split(s)) for s in splits) for client in data]


def labels(data: FederatedDataset, splits: Iterable[Any] = SPLITS) -> torch.Tensor:
    return torch.cat([client.split(s).y for client in data for s in splits])


def groups(data: FederatedDataset) -> dict[str, int]:
    codes = torch.cat([client.split(s).group for client in data for s in SPLITS])
    counts = torch.bincount(codes, minlength=len(data.schema.groups)).tolist()
    return dict(zip(data.schema.groups.labels, counts, strict=True))


@pytest.mark.parametrize("module", TABULAR)
def test_a_source_says_what_it_is(module: Any) -> None:
    assert module.INFO.name == module.__name__.rpartition(".")[2]
    assert module.INFO.notes
    assert module.INFO.sensitive
    assert module.INFO.terms


@pytest.mark.parametrize("name", sorted(FILES))
def test_a_source_without_its_files_says_how_to_get_them(
    name: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise OSError("no network in tests")

    monkeypatch.setattr("urllib.request.urlopen", refuse)
    monkeypatch.setenv("EVENFED_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    module = next(m for m in TABULAR if name == m.INFO.name)
    with pytest.raises(
        DataError, match=rf"dataset '{name}': .* was not found.*(https://|github|doi)"
    ):
        module.load()


def test_loans_need_no_data_folder(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVENFED_DATA", str(tmp_path / "none"))
    data = loans.load(seed=1)
    assert len(data) == 5
    # 1,989 rows; 87.7 % approved, 9.9 % black, 5.6 % Hispanic.
    assert labels(data).float().mean().item() == pytest.approx(0.877, abs=5e-4)
    shares = {name: n / 1989 for name, n in groups(data).items()}
    assert shares == pytest.approx({"black": 0.099, "hispanic": 0.056, "white": 0.845}, abs=5e-4)
    assert not {"approve", "reject", "action", "black", "min30"} & set(data.schema.features)


def test_loans_by_county_and_by_sex() -> None:
    county = loans.load(partition=ByColumn("county"))
    assert county.names == ["Suffolk", "other"]
    total = sum(sizes(county, *SPLITS))
    assert sizes(county, *SPLITS)[0] / total == pytest.approx(0.154, abs=5e-4)
    sex = loans.load(sensitive="sex", clients=3, partition=IID())
    assert groups(sex)["male"] / sum(groups(sex).values()) == pytest.approx(0.813, abs=5e-4)
    assert any("15 applications" in note for note in sex.schema.notes)


@pytest.mark.data
def test_compas_sound(needs: Needs) -> None:
    needs(*FILES["compas"])
    data = compas.load(seed=0)
    assert len(data) == 10
    assert sum(sizes(data, *SPLITS)) == 6172
    full = compas.load(filtered=False, partition=IID(), clients=3, sensitive="race,sex")
    assert len(labels(full)) == 7214
    assert int(labels(full).sum()) == 3963
    counts = groups(full)
    assert counts["African-American / Female"] + counts["African-American / Male"] == 3696
    assert counts["Other / Female"] + counts["Other / Male"] == 377 + 32 + 18
    assert sum(n for name, n in counts.items() if name.endswith("Female")) == 1395


@pytest.mark.data
def test_compas_published(needs: Needs) -> None:
    needs(*FILES["compas"])
    data = compas.load(protocol="published")
    assert data.schema.shape == (448,)
    assert sizes(data, "train", "val") == [3747, 1302]
    assert sizes(data, "test") == [1606, 559]
    assert sizes(data, "train") == [int(0.9 * 3747), int(0.9 * 1302)]
    trained = labels(data, ("train", "val")).float().mean().item()
    assert trained == pytest.approx(0.553, abs=5e-4)
    assert labels(data, ("test",)).float().mean().item() == pytest.approx(0.541, abs=5e-4)
    x = data.client(0).train.x
    assert x[:, :5].min() >= 0
    assert x[:, :5].max() <= 1
    assert data.schema.features[-1] == "group"
    assert data.schema.groups.labels[3] == "Female / African-American"
    assert "RAW ROWS" in data.schema.ledger[0]


@pytest.mark.data
def test_adult_sound_keeps_the_test_file_as_test_rows(needs: Needs) -> None:
    needs(*FILES["adult"])
    data = adult.load(seed=0, clients=4)
    assert sum(sizes(data, "train", "val")) == 32561
    assert sum(sizes(data, "test")) == 16281
    assert int(labels(data, ("train", "val")).sum()) == 7841
    assert int(labels(data, ("test",)).sum()) == 3846
    assert groups(data)["Female"] == 10771 + 5421
    assert not any(f.startswith(("sex", "fnlwgt", "education=")) for f in data.schema.features)
    race = adult.load(sensitive="race", clients=3, partition=IID())
    assert groups(race)["White"] == 27816 + 13946


@pytest.mark.data
def test_adult_published(needs: Needs) -> None:
    needs(*FILES["adult"])
    data = adult.load(protocol="published")
    assert data.schema.shape == (107,)
    assert sizes(data, "train", "val") == [20129, 12432]
    assert sizes(data, "test") == [9982, 6299]
    assert data.schema.groups.labels == ("Female", "Male")
    # The list of client 1 is not shuffled: its validation rows are almost all non-private.
    private = data.schema.features.index("workclass=Private")
    assert data.client(0).val.x[:, private].mean().item() == pytest.approx(0.02, abs=0.01)


@pytest.mark.data
def test_bank_sound(needs: Needs) -> None:
    needs(*FILES["bank"])
    data = bank.load(seed=0)
    assert sum(sizes(data, *SPLITS)) == 45211
    assert int(labels(data).sum()) == 5289
    assert not any(f.startswith(("age", "duration")) for f in data.schema.features)
    other = bank.load(sensitive="marital", duration=True, clients=2, partition=IID())
    assert {"age", "duration"} <= set(other.schema.features)
    assert other.schema.groups.labels == ("divorced", "married", "single")


@pytest.mark.data
def test_bank_published(needs: Needs) -> None:
    needs(*FILES["bank"])
    data = bank.load(protocol="published")
    assert data.schema.shape == (38,)
    assert sizes(data, "train", "val") == [14287, 5724, 11636]
    assert sizes(data, "test") == [6144, 2418, 5002]
    assert labels(data).float().mean().item() == pytest.approx(0.117, abs=5e-4)
    assert list(groups(data).values()) == [11111, 7602, 8537, 9642, 8319]


@pytest.mark.data
def test_bands_of_age_are_those_of_the_published_file(needs: Needs) -> None:
    needs(*FILES["bank"], "bank/bank_cat_age.csv.gz")
    path = locate(
        "bank",
        "bank_cat_age.csv.gz",
        "426cf4f5c17989b985ecd3b0b4d4fa3ab3f14d5f3801f8d878358b4937035470",
        download=False,
    )
    published = pd.read_csv(path)
    ours = bank._read()
    np.testing.assert_array_equal(bank.age_bands(ours["age"]), published["age"])
    np.testing.assert_array_equal(ours["balance"], published["balance"])


@pytest.mark.parametrize("module", [compas, adult, bank])
def test_the_published_protocol_admits_no_other_choice(module: Any) -> None:
    for option in ({"clients": 3}, {"partition": IID()}, {"sensitive": "sex"}):
        with pytest.raises(ConfigError, match=f"fixes '{next(iter(option))}'"):
            module.load(protocol="published", **option)


@pytest.mark.data
def test_heart_disease_of_complete_rows_is_that_of_flamby(needs: Needs) -> None:
    needs(*FILES["heart_disease"])
    data = heart_disease.load(seed=0)
    # FLamby's README: 740 patients, 199 + 104, 172 + 89, 30 + 16 and 85 + 45.
    assert dict(zip(data.names, sizes(data, *SPLITS), strict=True)) == {
        "Cleveland": 303, "Hungary": 261, "Switzerland": 46, "Long Beach": 130,
    }  # fmt: skip


@pytest.mark.data
def test_heart_disease_with_gaps_keeps_every_patient(needs: Needs) -> None:
    needs(*FILES["heart_disease"])
    data = heart_disease.load(missing="impute")
    assert dict(zip(data.names, sizes(data, *SPLITS), strict=True)) == {
        "Cleveland": 303, "Hungary": 294, "Switzerland": 123, "Long Beach": 200,
    }  # fmt: skip
    sick = {c.name: sum(int(c.split(s).y.sum()) for s in SPLITS) for c in data}
    assert sick == {"Cleveland": 139, "Hungary": 106, "Switzerland": 115, "Long Beach": 149}
    men = {c.name: sum(int(c.split(s).group.sum()) for s in SPLITS) for c in data}
    assert men == {"Cleveland": 206, "Hungary": 213, "Switzerland": 113, "Long Beach": 194}
    assert "chol=missing" in data.schema.features
    gaps = heart_disease._read()[list(heart_disease.COLUMNS[:13])].isna().sum(axis=1)
    hospital = heart_disease._read()["hospital"]
    assert gaps.groupby(hospital).sum().to_dict() == {
        "Cleveland": 6, "Hungary": 782, "Switzerland": 273, "Long Beach": 698,
    }  # fmt: skip


@pytest.fixture(scope="module")
def acs(needs: Needs) -> FederatedDataset:
    needs(*FILES["acs_income"])
    return acs_income.load(sensitive="sex,race")


@pytest.mark.data
def test_acs_income_by_state(acs: FederatedDataset) -> None:
    assert len(acs) == 50
    assert "California" not in acs.names
    counts = sizes(acs, *SPLITS)
    assert sum(counts) == 1402639
    assert (min(counts), max(counts)) == (3064, 135924)
    assert counts[acs.names.index("Florida")] == 32975
    assert labels(acs).float().mean().item() == pytest.approx(0.365, abs=5e-4)
    rates = [torch.cat([c.split(s).y for s in SPLITS]).float().mean().item() for c in acs]
    assert (min(rates), max(rates)) == pytest.approx((0.106, 0.490), abs=5e-4)


@pytest.mark.data
def test_acs_income_groups(acs: FederatedDataset) -> None:
    counts = np.array(list(groups(acs).values())).reshape(2, 5).sum(axis=0)
    assert counts.tolist() == [1124266, 131314, 61754, 12882, 72423]
    y = labels(acs).float()
    sex = torch.cat([client.split(s).group for client in acs for s in SPLITS]) // 5
    assert y[sex == 0].mean().item() == pytest.approx(0.440, abs=5e-4)
    assert y[sex == 1].mean().item() == pytest.approx(0.283, abs=5e-4)


@pytest.mark.data
def test_acs_income_takes_few_states_and_few_people(needs: Needs) -> None:
    needs(*FILES["acs_income"])
    data = acs_income.load(states="Vermont,Wyoming", limit=500)
    assert data.names == ["Vermont", "Wyoming"]
    assert sizes(data, *SPLITS) == [500, 500]
    alone = acs_income.load(states="Wyoming", limit=500, scale="none")
    both = acs_income.load(states="Vermont,Wyoming", limit=500, scale="none")
    assert torch.equal(alone.client(0).test.y, both.client(1).test.y)
    assert acs_income.load(clients=2, limit=100).names == ["New York", "Texas"]
    with pytest.raises(DataError, match="has no rows of California"):
        acs_income.load(states="California")
    with pytest.raises(ConfigError, match="has 50 states, not 60"):
        acs_income.load(clients=60, limit=10)
