"""The demo: train a small backbone on real digits, with a canonicalizer and, as its control, without one."""
