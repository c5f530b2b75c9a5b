"""Fair federated learning: to every silo, to every group, along a whole trade-off front."""

__version__ = "0.1.0"
