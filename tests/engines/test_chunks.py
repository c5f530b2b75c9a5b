"""A user's own model and loss: the same bits for every chunk size, number of workers and order."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from evenfed.core.local import LocalTraining
from evenfed.engines.options import EngineOptions
from evenfed.methods.qffl import QFFL


class Power(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return (0.1 + x.abs()) ** 0.7 + torch.logaddexp(x, 0.5 * x) + x.sinh().clamp(-1, 1)


LAYERS: dict[str, nn.Module] = {
    "sigmoid": nn.Sigmoid(),
    "silu": nn.SiLU(inplace=True),
    "softplus": nn.Softplus(beta=2),
    "elu": nn.ELU(),
    "selu": nn.SELU(),
    "celu": nn.CELU(1.5),
    "mish": nn.Mish(),
    "gelu": nn.GELU(),
    "powers": Power(),
    "attention": nn.TransformerEncoderLayer(
        11, 1, 7, dropout=0.0, activation="gelu", batch_first=True
    ),
}


def soft_loss(outputs: Tensor, y: Tensor) -> Tensor:
    margin = outputs[..., 1] - outputs[..., 0]
    return nn.functional.binary_cross_entropy_with_logits(margin, y.float(), reduction="none")


def own_model(name: str) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 11), LAYERS[name], nn.Linear(11, 2))


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("name", LAYERS)
def test_an_own_model_gives_the_same_bits_in_every_company(
    name: str, make_dataset: Any, train_rounds: Any, distance: Any
) -> None:
    """q-FFL asks for losses before training, so that evaluation matters for the weights too.

    On processors that round a product by how many there are, which a model without a smooth layer
    shows, up to rounding.
    """
    data = make_dataset(sizes=[20 + i % 3 for i in range(7)])
    method = QFFL(local=LocalTraining(lr=0.1, batch=9), q=1.0)

    def numbers(chunk: int, workers: int, smooth: bool = True) -> Tensor:
        engine = EngineOptions("vectorized", workers=workers, chunk=chunk)
        model = (
            own_model(name)
            if smooth
            else nn.Sequential(nn.Linear(3, 11), nn.ReLU(), nn.Linear(11, 2))
        )
        own = {"loss": soft_loss} if smooth else {}
        return train_rounds(method, data, engine, model=model, **own).everything  # type: ignore[no-any-return]

    companies = ((1, 1), (3, 1), (2, 2))
    plain = numbers(0, 1, smooth=False)
    even = all(torch.equal(plain, numbers(*of, smooth=False)) for of in companies)
    first = numbers(0, 1)
    assert first.isfinite().all()
    for of in companies:
        found = numbers(*of)
        assert torch.equal(first, found) if even else distance(found, first) < 1e-6
