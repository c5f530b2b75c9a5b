from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from evenfed.core.hypernetwork import FusionNet, Hypernetwork

RAYS = torch.tensor([[0.1, 0.9], [0.5, 0.5], [0.8, 0.2]])
NETS = [
    Hypernetwork(4, 2),
    Hypernetwork(5, 3, head=(), trunk=()),
    Hypernetwork(3, 1, head=(6, 2), trunk=(7,), activation="relu"),
]


def as_modules(net: Hypernetwork, beta: torch.Tensor) -> nn.Sequential:
    """The hypernetwork as PyTorch layers with the numbers of `beta`."""
    layers: list[nn.Module] = []
    begin = 0
    for depth, (out, width) in enumerate(net.layers):
        linear = nn.Linear(width, out)
        with torch.no_grad():
            linear.weight.copy_(beta[begin : begin + out * width].view(out, width))
            linear.bias.copy_(beta[begin + out * width : begin + out * (width + 1)])
        begin += out * (width + 1)
        # ReLU between the trunk's layers; the embedding is read out as it is
        layers += [linear, nn.ReLU()] if depth < len(net.layers) - 2 else [linear]
    assert begin == len(beta) == net.size
    return nn.Sequential(*layers)


@pytest.mark.parametrize("net", NETS)
def test_outputs_are_those_of_the_written_layers(net: Hypernetwork) -> None:
    beta = net.first(torch.Generator().manual_seed(0))
    features = torch.randn((6, net.latent), generator=torch.Generator().manual_seed(1))
    layers = net.classifiers(beta, RAYS)
    found = net.outputs_of(layers, features)
    with torch.no_grad():
        written = as_modules(net, beta)(RAYS)
        for i in range(3):
            value, begin = features, 0
            for depth, (out, width) in enumerate(net.written):
                weight = written[i, begin : begin + out * width].view(out, width)
                begin += out * width
                if depth and net.activation == "relu":
                    value = value.relu()
                value = value @ weight.T + written[i, begin : begin + out]
                begin += out
            torch.testing.assert_close(found[i], value, rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(net.module(layers, i)(features), value, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("net", NETS)
def test_one_beta_a_ray_is_each_ray_alone(net: Hypernetwork) -> None:
    betas = torch.stack([net.first(torch.Generator().manual_seed(i)) for i in range(3)])
    together = net.classifiers(betas, RAYS)
    for i in range(3):
        alone = net.classifiers(betas[i], RAYS[i : i + 1])
        for (w, b), (one_w, one_b) in zip(together, alone, strict=True):
            torch.testing.assert_close(w[i], one_w[0])
            torch.testing.assert_close(b[i], one_b[0])


def test_first_weights_are_within_the_bounds_of_pytorch() -> None:
    net = Hypernetwork(4, 2, trunk=(50, 4))
    beta = net.first(torch.Generator().manual_seed(0))
    middle = beta[150 : 150 + 4 * 51]  # Linear(50, 4) behind Linear(2, 50)
    assert float(middle.abs().max()) <= 50**-0.5
    assert float(middle.abs().max()) > 0.95 * 50**-0.5
    assert float(beta[:150].abs().max()) > 50**-0.5


def test_fusion_weights_are_a_distribution_that_starts_even_and_depends_on_the_ray() -> None:
    net = FusionNet(4, (8,))
    phi = net.first(torch.Generator().manual_seed(0))
    np.testing.assert_allclose(net.weights(phi, RAYS).numpy(), 0.25)
    phi["w1"] = torch.randn((4, 8), generator=torch.Generator().manual_seed(1))
    weights = net.weights(phi, RAYS)
    np.testing.assert_allclose(weights.sum(-1).numpy(), 1, rtol=1e-6)
    hidden = np.maximum(RAYS.numpy() @ phi["w0"].numpy().T + phi["b0"].numpy(), 0)
    logits = hidden @ phi["w1"].numpy().T + phi["b1"].numpy()
    expected = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    np.testing.assert_allclose(weights.numpy(), expected, rtol=1e-4)
    assert float((weights[0] - weights[2]).abs().max()) > 1e-3
