"""Noise that is drawn after the fact has the distribution of the noise that decided."""

import torch

from pleach_training.evaluate.coupling import foresee, posterior_noise


def test_the_winner_wins_and_noise_is_gumbel_on_average() -> None:
    generator = torch.Generator().manual_seed(0)
    probabilities = torch.tensor([0.5, 0.3, 0.15, 0.05])
    drawn = torch.multinomial(probabilities, 20_000, replacement=True, generator=generator)
    log_p = probabilities.log().expand(len(drawn), -1)
    noise = posterior_noise(log_p, drawn, generator)
    assert torch.equal((log_p + noise).argmax(-1), drawn)
    # Over draws of the winner it is standard Gumbel noise: mean 0.5772, variance pi^2 / 6.
    torch.testing.assert_close(noise.mean(0), torch.full((4,), 0.5772), atol=0.03, rtol=0)
    torch.testing.assert_close(noise.var(0), torch.full((4,), 1.6449), atol=0.08, rtol=0)


def test_a_drafter_that_is_right_foresees_the_draw() -> None:
    generator = torch.Generator().manual_seed(1)
    log_p = torch.tensor([0.6, 0.3, 0.1]).log().expand(500, -1)
    drawn = torch.multinomial(log_p.exp(), 1, generator=generator).squeeze(-1)
    noise = posterior_noise(log_p, drawn, generator)
    assert torch.equal(foresee(log_p, noise).argmax(-1), drawn)
    assert bool((foresee(log_p, noise).exp().sum(-1) <= 1 + 1e-5).all())
