"""Encoders of texts: by name, from an installed package, and only if they are there."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from evenfed.core.errors import ConfigError
from evenfed.data import encoders


class Fake(ModuleType):
    """Stands for the package sentence-transformers; remembers which models were loaded."""

    def __init__(self) -> None:
        super().__init__("sentence_transformers")
        self.__spec__ = importlib.util.spec_from_loader("sentence_transformers", None)
        self.loaded: list[str] = []

    def SentenceTransformer(self, name: str) -> Fake:
        self.loaded.append(name)
        return self

    def encode(self, texts: list[str], normalize_embeddings: bool) -> list[list[float]]:
        assert normalize_embeddings
        return [[float(len(text)), 0.0] for text in texts]


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> Fake:
    encoders._embedded.cache_clear()
    made = Fake()
    monkeypatch.setitem(sys.modules, "sentence_transformers", made)
    return made


@pytest.fixture
def carrier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package with a model in it, and one without."""
    (tmp_path / "carries_a_model" / "inside").mkdir(parents=True)
    (tmp_path / "carries_a_model" / "__init__.py").touch()
    (tmp_path / "carries_a_model" / "inside" / "modules.json").write_text("[]")
    (tmp_path / "carries_nothing").mkdir()
    (tmp_path / "carries_nothing" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(encoders, "CARRIERS", ("not_installed", "carries_a_model"))
    return tmp_path / "carries_a_model" / "inside"


def test_an_encoder_without_its_package_is_refused_not_replaced(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    for name in ("sentence-transformers:small", "package:carries_a_model"):
        with pytest.raises(ConfigError, match="needs the package sentence-transformers"):
            encoders.encoder_of(name)


def test_a_sentence_encoder_is_asked_for_vectors_of_length_one(package: Fake):
    made = encoders.encoder_of("sentence-transformers:small")(["ab", "c"])
    assert made.dtype == np.float32
    assert made.tolist() == [[2.0, 0.0], [1.0, 0.0]]
    assert package.loaded == ["small"]


def test_the_same_texts_are_encoded_once(package: Fake):
    for _ in range(2):
        encoders.encoder_of("sentence-transformers:small")(["ab", "c"])
    encoders.encoder_of("sentence-transformers:small")(["ab"])
    assert len(package.loaded) == 2


def test_a_package_may_carry_the_model(package: Fake, carrier: Path):
    encoders.encoder_of("package:carries_a_model")(["ab"])
    assert package.loaded == [str(carrier)]
    for name in ("carries_nothing", "not_installed", "../etc"):
        with pytest.raises(ConfigError, match="carries a model of sentence-transformers"):
            encoders.encoder_of(f"package:{name}")


def test_what_is_installed_is_found(package: Fake, carrier: Path, monkeypatch: pytest.MonkeyPatch):
    assert encoders.installed_encoder() == "package:carries_a_model"
    monkeypatch.setattr(encoders, "CARRIERS", ("not_installed",))
    assert encoders.installed_encoder() is None


def test_a_model_without_the_package_that_loads_it_is_no_encoder(
    carrier: Path, monkeypatch: pytest.MonkeyPatch
):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda n: None if n == "sentence_transformers" else find(n)
    )
    assert encoders.installed_encoder() is None
