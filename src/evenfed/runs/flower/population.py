"""The clients as the server knows them: names and sizes, no examples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from evenfed.core.examples import Examples
from evenfed.data.dataset import SPLITS, ClientData, FederatedDataset, Schema, Split
from evenfed.data.inputs import Inputs


class RemoteDataset(FederatedDataset):
    """A federated dataset whose examples are at the nodes.

    In place of a client's examples stands one of zeros, by which models are checked for the
    shapes that they take.

    Parameters
    ----------
    sizes : mapping of client to mapping of split to number
        As the nodes said them.
    inputs : Inputs, or mapping of client to Inputs, optional
        How raw rows become features at the nodes; an exported model needs it.
    """

    def __init__(
        self,
        schema: Schema,
        sizes: Mapping[str, Mapping[str, int]],
        inputs: Inputs | Mapping[str, Inputs] | None = None,
    ) -> None:
        self.counts = {name: dict(found) for name, found in sizes.items()}
        empty = blank(schema)
        clients: Sequence[ClientData] = [
            ClientData(name, empty, empty, empty) for name in self.counts
        ]
        super().__init__(schema, clients, inputs=inputs)

    def sizes(self, split: Split = "train") -> NDArray[np.int64]:
        """Examples a client in a split `(K,)`, as the nodes said them."""
        return np.array([found[split] for found in self.counts.values()], dtype=np.int64)


def blank(schema: Schema) -> Examples:
    """One example of zeros."""
    x = torch.zeros(1, *schema.shape, dtype=torch.int64 if schema.vocabulary else torch.float32)
    number = schema.kind == "regression"
    return Examples.of(x, torch.zeros(1, dtype=torch.float32 if number else torch.int64))


def checked_sizes(found: object) -> dict[str, int]:
    """Sizes out of a message."""
    if not isinstance(found, dict) or set(found) != set(SPLITS):
        raise ValueError("a node's sizes must name train, val and test")
    return {split: int(found[split]) for split in SPLITS}
