"""Shakespeare: the next character of a role's lines, a client a role.

The task of McMahan et al. 2017 and LEAF on the text that Karpathy's char-rnn made known as
tinyshakespeare.
"""

from __future__ import annotations

import gzip
import string
from collections.abc import Mapping

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from evenfed.core.errors import ConfigError, DataError
from evenfed.core.examples import Examples
from evenfed.data.dataset import ClientData, FederatedDataset, Schema
from evenfed.data.files import locate
from evenfed.data.inputs import Tokens
from evenfed.data.partition import Partitioner, no_partition
from evenfed.data.registry import SourceInfo

INFO = SourceInfo(
    name="shakespeare",
    title="Next-character prediction on Shakespeare's plays",
    kind="multiclass",
    clients="roles with at least `min_characters` characters (141 with 1,000)",
    needs="data files",
    source="Karpathy: char-rnn, data/tinyshakespeare; McMahan et al. 2017 for the task",
    terms="public domain text; none stated with the file",
    notes=("roles of one name in several plays (All, First Citizen) are one client",),
)

FILE = (
    "tinyshakespeare.txt.gz",
    "bed00f18e91cda6838950656f0a95e07e0f4dbe8649a4b959f7602a7e53fbc6e",
)
# Fixed beforehand, so that no client's text is looked at to make it.
VOCABULARY = "\n !$&',-.3:;?" + string.ascii_uppercase + string.ascii_lowercase


def load(
    *,
    clients: int | None = None,
    partition: Partitioner | None = None,
    seed: int = 0,
    min_characters: int = 1000,
    length: int = 80,
    stride: int = 10,
    val: float = 0.1,
    test: float = 0.1,
) -> FederatedDataset:
    """Load the plays.

    A role's lines, in the order of the text, are cut in time: first training, then
    validation, last test characters. Windows never cross a cut.

    Parameters
    ----------
    clients : int, optional
        So many of the roles, drawn by the seed; all of them if left out.
    partition : None
        Not taken: the clients are the roles.
    seed : int
    min_characters : int
        Roles with less text are left out.
    length : int
        Characters in a window, `T`; the label is the character that follows.
    stride : int
        Step from one window to the next.
    val, test : float
        Shares of a role's text.

    Examples
    --------
    >>> len(VOCABULARY)
    65
    >>> load(clients=20, stride=80)  # doctest: +SKIP
    """
    no_partition(partition, "shakespeare", "the roles")
    if min(length, stride) < 1 or min(val, test) < 0 or val + test >= 1:
        raise ConfigError("length and stride must be at least 1; val and test shares below 1")
    least = min(share for share in (val, test, 1 - val - test) if share > 0)
    if int(least * min_characters) <= length:
        raise ConfigError(
            f"min_characters={min_characters} leaves a role without a window of {length} "
            f"characters in one of its parts; use at least {int((length + 1) / least) + 1}"
        )
    with gzip.open(locate("shakespeare", *FILE), "rt", encoding="ascii") as file:
        roles = read_roles(file.read())
    return from_roles(
        {name: text for name, text in roles.items() if len(text) >= min_characters},
        clients=clients,
        seed=seed,
        length=length,
        stride=stride,
        shares=(val, test),
    )


def from_roles(
    roles: Mapping[str, str],
    *,
    clients: int | None,
    seed: int,
    length: int,
    stride: int,
    shares: tuple[float, float],
) -> FederatedDataset:
    """Make clients of the text of roles; see `load`.

    Examples
    --------
    >>> data = from_roles({"All": "Speak, speak. " * 9}, clients=None, seed=0, length=5, stride=1,
    ...                   shares=(0.1, 0.1))
    >>> data.schema.vocabulary, data.client(0).train.x.shape, data.sizes("test")
    (65, torch.Size([97, 5]), array([7]))
    """
    names = list(roles)
    if clients is not None:
        if not 1 <= clients <= len(names):
            raise ConfigError(f"there are {len(names)} roles with enough text, not {clients}")
        chosen = np.sort(np.random.default_rng(seed).permutation(len(names))[:clients])
        names = [names[i] for i in chosen]
    made = []
    for name in names:
        codes = encode(roles[name])
        cuts = np.cumsum([int(share * len(codes)) for share in reversed(shares)])[::-1]
        parts = np.split(codes, len(codes) - cuts)
        made.append(ClientData(name, *(windows(part, length, stride) for part in parts)))
    schema = Schema(
        "shakespeare",
        "multiclass",
        len(VOCABULARY),
        (length,),
        label="next character",
        class_names=tuple(VOCABULARY),
        vocabulary=len(VOCABULARY),
        notes=INFO.notes,
    )
    inputs = Tokens(length, VOCABULARY, len(VOCABULARY))
    return FederatedDataset(schema, made, inputs=inputs)


def read_roles(text: str) -> dict[str, str]:
    r"""Lines of every role, joined in the order of the text.

    Examples
    --------
    >>> read_roles("A:\nHo!\n\nB:\nWho?\n\nA:\nI.\n")
    {'A': 'Ho!\nI.', 'B': 'Who?'}
    """
    speeches: dict[str, list[str]] = {}
    for number, block in enumerate(text.strip("\n").split("\n\n")):
        role, colon, speech = block.strip("\n").partition(":\n")
        if role.endswith(":") and not colon:
            continue  # a role named without any line
        if not colon or "\n" in role:
            raise DataError(f"speech {number} does not begin with a line 'ROLE:'")
        speeches.setdefault(role, []).append(speech)
    return {role: "\n".join(parts) for role, parts in speeches.items()}


def encode(text: str) -> NDArray[np.int64]:
    """Position of every character in `VOCABULARY`, `(len(text),)`.

    Examples
    --------
    >>> encode("Ab!")
    array([13, 40,  2])
    """
    table = np.full(129, -1, dtype=np.int64)  # the last place is for all that is not ASCII
    table[[ord(character) for character in VOCABULARY]] = np.arange(len(VOCABULARY))
    points = np.frombuffer(text.encode("utf-32-le"), "<u4")
    codes: NDArray[np.int64] = table[np.minimum(points, 128)]
    if (codes < 0).any():
        raise DataError(f"{int((codes < 0).sum())} characters are outside the vocabulary")
    return codes


def windows(codes: NDArray[np.int64], length: int, stride: int) -> Examples:
    """Windows of `length` codes `(n, T)`, each labelled with the code that follows `(n,)`.

    Examples
    --------
    >>> made = windows(np.arange(6), length=3, stride=2)
    >>> made.x.tolist(), made.y.tolist()
    ([[0, 1, 2], [2, 3, 4]], [3, 5])
    """
    if len(codes) <= length:
        empty = torch.zeros((0, length), dtype=torch.int64)
        return Examples.of(empty, torch.zeros(0, dtype=torch.int64))
    table = sliding_window_view(codes, length + 1)[::stride]
    return Examples.of(
        torch.from_numpy(table[:, :-1].copy()), torch.from_numpy(table[:, -1].copy())
    )
