"""Jobs on their way into the table and out of it: JSON Lines, and the stores of other schedulers.

A source says what it has; the plan says what becomes of each job; only then something is written, batch by batch.
"""
