"""The beat claims, publishes, records and reclaims; it can neither start nor finish a run."""
