from __future__ import annotations

import numpy as np
import pytest
import scipy.stats
import torch
from torch.distributions import Beta
from torch.func import vmap

from evenfed.core.preferences import beta_draws, draw_noise, rays, scalarized, score


@pytest.mark.parametrize("alpha", [(1.0, 1.0), (0.5, 0.5), (3.0, 1.0), (0.6, 4.5), (0.1, 0.2)])
def test_draws_have_the_beta_distribution(alpha: tuple[float, float]) -> None:
    """Kolmogorov and Smirnov; a right sampler fails one seed in a thousand, this seed is fixed."""
    noise = draw_noise(torch.Generator().manual_seed(1), 20_000)
    noise = {name: value.double() for name, value in noise.items()}
    drawn = beta_draws(torch.tensor(alpha, dtype=torch.float64), noise).numpy()
    assert scipy.stats.kstest(drawn, scipy.stats.beta(*alpha).cdf).pvalue > 1e-3


def test_draws_move_with_alpha_and_keep_the_noise() -> None:
    noise = draw_noise(torch.Generator().manual_seed(0), 3, 1000)
    alphas = torch.tensor([[1.0, 3.0], [1.0, 1.0], [3.0, 1.0]])
    drawn = vmap(beta_draws)(alphas, noise)
    assert drawn.shape == (3, 1000)
    np.testing.assert_allclose(drawn.mean(1).numpy(), [0.25, 0.5, 0.75], atol=0.03)
    again = beta_draws(alphas[2], {name: value[2] for name, value in noise.items()})
    assert torch.equal(again, drawn[2])


def test_score_is_the_gradient_of_the_log_density() -> None:
    alpha = torch.tensor([0.7, 2.5], dtype=torch.float64, requires_grad=True)
    p = torch.tensor([0.01, 0.4, 0.93], dtype=torch.float64)
    expected = [
        torch.autograd.grad(Beta(alpha[0], alpha[1]).log_prob(value), alpha)[0] for value in p
    ]
    torch.testing.assert_close(score(alpha.detach(), p), torch.stack(expected))


def test_rays_stay_away_from_zero_and_scalar_losses_are_those_of_equation_3() -> None:
    asked = rays(torch.tensor([0.0, 0.3, 1.0]), eps=0.05)
    np.testing.assert_allclose(asked.numpy(), [[0.05, 0.95], [0.3, 0.7], [0.95, 0.05]], rtol=1e-6)
    losses = torch.tensor([[0.6, 0.1]]).expand(3, 2)
    expected = [max(0.6 / a, 0.1 / b) for a, b in asked.tolist()]
    np.testing.assert_allclose(
        scalarized(losses, asked, "tchebycheff").numpy(), expected, rtol=1e-6
    )
    smooth = scalarized(losses, asked, "logsumexp").numpy()
    assert (smooth > expected).all()
    assert (smooth <= np.array(expected) + np.log(2)).all()
