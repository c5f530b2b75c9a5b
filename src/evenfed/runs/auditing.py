"""The verb of an audit: open the model, read the rows, measure, compare with limits."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from evenfed.core.errors import ConfigError
from evenfed.data.dataset import SPLITS, FederatedDataset, Kind
from evenfed.data.registry import load
from evenfed.data.silos import words
from evenfed.runs.audit import Audit, Wanted, audit
from evenfed.runs.audit_data import SiloRows, dataset_rows
from evenfed.runs.audited import How, open_model


def audit_model(
    model: Path | str,
    silos: str | Sequence[str] | None = None,
    *,
    label: str | None = None,
    sensitive: str | Sequence[str] = (),
    client_column: str | None = None,
    dataset: str | FederatedDataset | None = None,
    options: dict[str, Any] | None = None,
    split: Literal["train", "val", "test", "all"] = "test",
    disparity: str | None = None,
    max_disparity: float | None = None,
    max_group_loss: float | None = None,
    min_worst_client: float | None = None,
    architecture: str = "",
    features: str | Sequence[str] = (),
    classes: str | Sequence[str] = (),
    kind: Kind | None = None,
    favourable: str | None = None,
    trust: Sequence[str] = (),
    seed: int = 0,
) -> Audit:
    """Score an existing model on silo files, or on a dataset, by client and by group.

    Parameters
    ----------
    model : path
        An export of Evenfed, foreign weights (.safetensors), .onnx, or scikit-learn's as .skops.
    silos : str or sequence of str
        Patterns or paths of CSV and Parquet files, one a client. All rows are scored: give rows
        that the model was not trained on.
    label, sensitive, client_column
        Columns of the files: to predict, whose levels are the groups, that names the client.
    dataset, options, split
        Instead of files: a dataset, its options by name, and which rows.
    disparity : str, optional
        `demographic_parity` (default), `equal_opportunity`, `equalized_odds` or `accuracy`; for
        regression `mean_prediction` (default), `mean_residual` or `mean_squared_error`.
    max_disparity, max_group_loss, min_worst_client : float, optional
        Limits; `result.broken` lists those that the model does not keep.
    architecture, features, classes, kind
        For foreign models: the built-in model of the weights, columns in the order of the model,
        values of the label in the order of its outputs, and the kind of prediction.
    favourable : str, optional
        The favourable one of two classes; default: the second.
    trust : sequence of str
        Types in a .skops file that may be loaded.

    Examples
    --------
    >>> import tempfile
    >>> import evenfed as ef
    >>> result = ef.train("fedavg", "loans", rounds=2)
    >>> path = ef.export_model(result, Path(tempfile.mkdtemp()) / "m.safetensors").path
    >>> found = audit_model(path, dataset="loans", max_disparity=1.0)
    >>> found.broken, bool(found.evaluation.summary()["accuracy"] == result.summary()["accuracy"])
    ((), True)
    """
    how = How(architecture, words(features), words(classes), kind, tuple(trust))
    wanted = Wanted(disparity, max_disparity, max_group_loss, min_worst_client)
    path = Path(model)
    columns = [*([] if label is None else [label]), *words(sensitive)]
    if twice := [name for i, name in enumerate(columns) if name in columns[:i]]:
        raise ConfigError(
            f"column '{twice[0]}' is named twice: --label and --sensitive take different columns"
        )
    if (silos is None) == (dataset is None):
        raise ConfigError("an audit needs rows: give silo files, or the name of a dataset")
    if silos is not None:
        if label is None:
            raise ConfigError("name the column to predict: --label")
        if options:
            raise ConfigError("--set is about a dataset; silo files have no options")
        rows = SiloRows.read(silos, label, words(sensitive), client_column)
        opened = open_model(path, how, rows.others)
        return audit(opened, rows.for_model(opened, favourable), wanted, seed=seed)
    if label is not None or client_column is not None:
        raise ConfigError("--label and --client-column are about silo files; a dataset has its own")
    if split not in (*SPLITS, "all"):
        raise ConfigError(f"--split is '{split}'; it may be train, val, test or all")
    if isinstance(dataset, FederatedDataset):
        data = dataset
    else:
        assert dataset is not None
        given: dict[str, Any] = dict(options or {})
        if sensitive:
            given["sensitive"] = ",".join(words(sensitive))
        data = load(dataset, seed=seed, **given)
    opened = open_model(path, how, data.schema.features)
    chosen = None if split == "all" else split
    return audit(opened, dataset_rows(data, opened, chosen, favourable), wanted, seed=seed)
