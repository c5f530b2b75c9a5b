"""Before training: silos agree on levels and on the preprocessing, by sums that nodes send."""

from __future__ import annotations

from typing import Any

import numpy as np
from flwr.app import Message
from numpy.typing import NDArray

from evenfed.core.errors import DataError, QuorumError
from evenfed.data import fitting
from evenfed.data.dataset import Schema
from evenfed.data.fitting import Summary
from evenfed.data.inputs import Columns
from evenfed.data.preprocess import Preprocessor, level_order
from evenfed.data.silo import SILOS, SiloSchema, schema_of
from evenfed.engines.flower import wire
from evenfed.engines.flower.roster import Roster
from evenfed.runs.flower.population import checked_sizes


class Agreement:
    """The three exchanges that make silo files one federated dataset."""

    def __init__(
        self, roster: Roster, names: list[str], common: dict[str, Any], timeout: float
    ) -> None:
        self.roster = roster
        self.names = names
        self.common = common
        self.timeout = timeout

    def reach(
        self, schema: SiloSchema, seed: int
    ) -> tuple[Schema, dict[str, Any], dict[str, dict[str, int]]]:
        """The dataset's schema, what messages say about data, and the clients' sizes."""
        asked = bool(schema.unknown_levels)
        if asked:
            schema = schema.with_levels(self._levels(schema, seed))
        data = silo_data(schema, seed)
        replies = self._ask("summary", data)
        sizes = {name: checked_sizes(reply["sizes"]) for name, reply in replies.items()}
        agreed = fitting.combine([_summary(reply["summary"]) for reply in replies.values()])
        spec = schema.fitted_spec

        def squared(mean: NDArray[np.float64]) -> NDArray[np.float64]:
            parts = self._ask("squares", data, mean=mean.tolist())
            found = np.array([reply["squares"] for reply in parts.values()], dtype=np.float64)
            result: NDArray[np.float64] = found.sum(0)
            return result

        levels = fitting.agreed_levels(spec, agreed)
        preprocessor = fitting.finished(agreed, squared, spec, levels, "all clients")
        ledger = fitting.ledger(spec, "federated")
        if asked:
            ledger = (*ledger, "which levels the sensitive columns have, to agree on the groups")
        data["preprocessor"] = preprocessor.to_dict()
        return schema_of(schema, preprocessor, ledger), data, sizes

    def _levels(self, schema: SiloSchema, seed: int) -> dict[str, tuple[str, ...]]:
        replies = self._ask("levels", silo_data(schema, seed))
        found: dict[str, set[str]] = {column: set() for column in schema.unknown_levels}
        for reply in replies.values():
            for column, levels in found.items():
                levels.update(str(level) for level in reply["levels"][column])
        return {column: tuple(sorted(v, key=level_order)) for column, v in found.items()}

    def _ask(self, kind: str, data: dict[str, Any], **more: Any) -> dict[str, dict[str, Any]]:
        """One exchange that every node must answer."""
        content = wire.message({**self.common, "kind": kind, "data": data, **more}, None, [])
        replies = self.roster.ask(dict.fromkeys(self.names, content), self.timeout)
        found = {}
        for name, reply in replies.items():
            if not isinstance(reply, Message):
                error = DataError if "error" in reply else QuorumError
                raise error(f"client '{name}' {reply}")
            found[name] = wire.spec_of(reply.content)
        return found


def silo_data(schema: SiloSchema, seed: int) -> dict[str, Any]:
    """What messages say about the data of silos."""
    return {"name": SILOS, "schema": schema.table(), "seed": seed}


def agreed_schema(data: dict[str, Any]) -> Schema:
    """The dataset's schema from what messages say, when a run goes on."""
    schema = SiloSchema.of(data["schema"])
    return schema_of(schema, Preprocessor.from_dict(data["preprocessor"]))


def agreed_inputs(data: dict[str, Any]) -> Columns:
    """How raw rows become features at every node, from what messages say."""
    schema = SiloSchema.of(data["schema"])
    return Columns(schema.parted(Preprocessor.from_dict(data["preprocessor"]))[0])


def _summary(found: dict[str, Any]) -> Summary:
    numbers = {k: np.array(found[k], dtype=np.float64) for k in ("count", "total", "low", "high")}
    levels = tuple({str(k): int(v) for k, v in seen.items()} for seen in found["levels"])
    return Summary(levels=levels, **numbers)
