"""Sweeps: many networks, methods, alphas and draws in one call, with rows that survive an interruption."""
