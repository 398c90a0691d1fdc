"""Benchmarks of the library, with comparable libraries measured in the same run."""
