"""Tasks: the data a run learns from, and the metrics it is judged by."""
