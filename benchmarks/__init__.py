"""What this package costs, as ratios measured in one run. `make bench` runs it."""
