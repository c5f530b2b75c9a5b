"""Losses of groups as sums that clients send, and bounds on them.

A cell `z` is what a constraint counts: a group `a`, or a group with a true label `(a, y)`; the
label is the faster index. `R_z = s_z / m_z`: the mean loss of a cell over the examples of all
clients, with the sums `s_z` and numbers `m_z` that clients send.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from evenfed.core.errors import ConfigError, QuorumError
from evenfed.core.examples import Examples
from evenfed.core.task import Params, Task
from evenfed.core.tree import Tree
from evenfed.engines.exchange import ClientFunction
from evenfed.engines.federation import Federation

Constraint = Literal["bounded_group_loss", "conditional_bounded_group_loss", "minmax"]
CONSTRAINTS: tuple[Constraint, ...] = (
    "bounded_group_loss",
    "conditional_bounded_group_loss",
    "minmax",
)


@dataclass(frozen=True)
class Cells:
    """`groups` cells, or `groups * labels` with labels told apart."""

    groups: int
    labels: int = 1

    def __len__(self) -> int:
        return self.groups * self.labels

    def table(self, values: Tensor) -> Tensor:
        """Values `(Z,)` of the cells as `(groups, labels)`, the form `cell_factors` reads."""
        return values.reshape(self.groups, self.labels)

    def counts(self, data: Examples) -> Tensor:
        """Real examples in each cell `(Z,)`, float64."""
        return self.added(data, data.weight)

    def losses(self, task: Task, params: Params, data: Examples) -> dict[str, Tensor]:
        """Sums of the losses of a model and numbers of examples, each `(Z,)`, float64."""
        precise = next(iter(params.values())).dtype
        x = data.x.to(precise) if data.x.is_floating_point() else data.x
        losses = task.losses(task.outputs(params, x), data.y)
        return {
            "sums": self.added(data, losses * data.weight),
            "counts": self.added(data, data.weight),
        }

    def added(self, data: Examples, values: Tensor) -> Tensor:
        """Sums `(Z,)` over cells of values `(n,)`, float64."""
        start = torch.zeros(len(self), dtype=torch.float64, device=values.device)
        return start.index_add(0, _cell(data, self.labels), values.to(torch.float64))

    def names(self, groups: Sequence[str], labels: Sequence[str]) -> list[str]:
        """A readable name of every cell."""
        if self.labels == 1:
            return list(groups)
        known = labels or [str(y) for y in range(self.labels)]
        return [f"{group}, {label}" for group in groups for label in known]


def _cell(data: Examples, labels: int) -> Tensor:
    return data.group if labels == 1 else data.group * labels + data.y


def cell_factors(batch: Examples, table: Tree) -> Tensor:
    """Factors `(B,)` of the examples' losses: the entry of `table` `(groups, labels)` of each."""
    return table.reshape(-1).index_select(0, _cell(batch, table.shape[-1]))  # type: ignore[no-any-return]


def counted(federation: Federation, function: ClientFunction) -> Tensor:
    """One exchange with all clients: examples by cell `(Z,)`; the function sends `counts`.

    The counts weigh losses in every round, so none may be missing; a round without one is void,
    and the next asks again.
    """
    mean = federation.mean(function, {}, weights="uniform", clients=federation.everyone)
    for dropped in mean.dropped:
        raise QuorumError(
            f"examples by group are needed of all clients, but '{dropped.name}' {dropped.reason}"
        )
    counts: Tensor = (mean.value["counts"].cpu() * len(mean.clients)).round()
    federation.note(group_examples=counts.tolist())
    return counts


def risks(found: Tree, active: Tensor) -> Tensor:
    """Mean losses `(Z,)` from sums and numbers; a cell that nobody has gets the mean of the others.

    That leaves the place of its multiplier among the others as it is. Where nobody of a cohort has
    any of the cells, all are 0.
    """
    seen = seen_in(found, active)
    means = found["sums"].cpu() / torch.where(seen, found["counts"].cpu(), 1.0)
    other = means[seen].mean() if bool(seen.any()) else torch.zeros((), dtype=means.dtype)
    return torch.where(seen, means, other)


def seen_in(found: Tree, active: Tensor) -> Tensor:
    """Active cells `(Z,)` of which a client that answered has examples."""
    seen: Tensor = active & (found["counts"].cpu() > 0)
    return seen


def bounds(
    cells: Cells,
    zeta: float | tuple[float, ...],
    labels: tuple[int, ...],
    owner: str,
) -> Tensor:
    """The bounds `zeta_z` `(Z,)`, float64; infinite for labels that are not bounded.

    One number is for all cells. Otherwise one a group, or for cells with labels one a label
    (as the paper has it) or one a cell, groups slowest.

    Examples
    --------
    >>> bounds(Cells(2, 2), (0.4, 0.7), (), "pffl").tolist()
    [0.4, 0.7, 0.4, 0.7]
    """
    chosen = labels or tuple(range(cells.labels))
    if any(not 0 <= y < cells.labels for y in chosen):
        raise ConfigError(f"{owner}: labels must be in 0..{cells.labels - 1}, but are {labels}")
    given = (float(zeta),) if isinstance(zeta, float | int) else zeta
    if any(math.isnan(z) or z == -math.inf for z in given):
        raise ConfigError(f"{owner}: zeta must be numbers, or inf for no bound, not {zeta}")
    shapes = {1: "one number", len(chosen): "one a label", cells.groups * len(chosen): "one a cell"}
    if cells.labels == 1:
        shapes = {1: "one number", cells.groups: "one a group"}
    if len(given) not in shapes:
        known = ", ".join(f"{count} ({what})" for count, what in shapes.items())
        raise ConfigError(f"{owner}: zeta has {len(given)} numbers; it may have {known}")
    values = torch.tensor(given, dtype=torch.float64)
    repeated = values.repeat(cells.groups * len(chosen) // len(values))
    table = torch.full((cells.groups, cells.labels), math.inf, dtype=torch.float64)
    table[:, list(chosen)] = repeated.reshape(cells.groups, len(chosen))
    return table.reshape(-1)


def spread_reference(cells: Cells, reference: tuple[float, ...], owner: str) -> Tensor:
    """Reference losses `(Z,)` from one number a group or one a cell."""
    if len(reference) not in (cells.groups, len(cells)):
        raise ConfigError(
            f"{owner}: reference has {len(reference)} numbers; it may have {cells.groups} (one a "
            f"group)" + (f" or {len(cells)} (one a cell)" if cells.labels > 1 else "")
        )
    values = torch.tensor(reference, dtype=torch.float64)
    return values if len(values) == len(cells) else values.repeat_interleave(cells.labels)
