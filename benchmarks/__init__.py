"""Measurements of the core, with peers in the same run."""
