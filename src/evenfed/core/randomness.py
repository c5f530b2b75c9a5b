"""Randomness is data: every draw comes from a generator seeded by what it is for.

A generator depends on (run seed, purpose, round, client key) and on nothing else, so that a
run gives the same numbers on every engine, in every chunk size and in every client order.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache

import numpy as np
import torch

_WORD = (1 << 64) - 1


@lru_cache(maxsize=256)
def _purpose_word(purpose: str) -> int:
    return int.from_bytes(hashlib.blake2b(purpose.encode(), digest_size=8).digest(), "little")


def _mix(state: int, word: int) -> int:
    """Absorb a word into a 64-bit state (the finaliser of splitmix64)."""
    z = (state + word + 0x9E3779B97F4A7C15) & _WORD
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _WORD
    return z ^ (z >> 31)


def seed_for(seed: int, purpose: str, round: int = 0, client: int = 0) -> int:
    """A 63-bit seed that depends on all four arguments.

    Examples
    --------
    >>> seed_for(0, "batches", 1, 2) == seed_for(0, "batches", 1, 2)
    True
    >>> seed_for(0, "batches", 1, 2) == seed_for(0, "batches", 2, 1)
    False
    """
    state = _purpose_word(purpose)
    for word in (seed, round, client):
        state = _mix(state, word & _WORD)
    return state >> 1


def generator(seed: int, purpose: str, round: int = 0, client: int = 0) -> torch.Generator:
    """A torch generator on the CPU for one purpose."""
    return torch.Generator().manual_seed(seed_for(seed, purpose, round, client))


def numpy_generator(
    seed: int, purpose: str, round: int = 0, client: int = 0
) -> np.random.Generator:
    """A NumPy generator for one purpose."""
    return np.random.default_rng(seed_for(seed, purpose, round, client))
