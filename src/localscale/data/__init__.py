"""The three locally scaled datasets."""
