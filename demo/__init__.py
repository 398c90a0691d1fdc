"""The main job in a few minutes: real digits, a small backbone, a control, and a canonicalizer."""
