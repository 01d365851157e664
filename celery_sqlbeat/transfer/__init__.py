"""Import and export jobs: JSON Lines, and the stores of other schedulers.

A source lists its jobs, the plan decides what becomes of each, and batches of them are written.
"""
