"""The verbs of a store over rows that are compared and set, one job at a time."""
