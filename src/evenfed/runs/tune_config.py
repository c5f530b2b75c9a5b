"""How a study tunes its methods."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class TuneConfig(BaseModel):
    """How the methods of a study are tuned, all with the same number of trials.

    Parameters
    ----------
    on : {"val"}
        The examples that decide; never those that are reported.
    budget : int
        Trials a method and dataset: its defaults, rates, then settings of its grid at the best of
        them, which are less than half of the trials unless rates are few.
    metric : str
        What decides; by default accuracy, or the loss of a regression.
    rates : list of float
        Values of `local.lr` in the order in which they are tried: where trials are few, the first.
    seed : int
        Draws the settings where the grid has more of them than there are trials.
    """

    model_config = ConfigDict(extra="forbid")

    on: Literal["val"] = "val"
    budget: int = Field(default=6, ge=1)
    metric: str = ""
    rates: list[float] = Field(default_factory=lambda: [0.05, 0.2, 0.5, 0.02, 0.1, 1.0])
    seed: int = Field(default=0, ge=0)
