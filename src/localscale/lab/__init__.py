"""The lab: datasets, methods, recipes, training and pages that run experiments with the library.

The lab imports the library; the library never imports the lab.
"""
