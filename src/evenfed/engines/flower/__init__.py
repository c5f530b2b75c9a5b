"""Exchanges as messages of Flower: the engine's side that knows no method and no data."""
