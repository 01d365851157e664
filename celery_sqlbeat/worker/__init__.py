"""The worker: begins a run only with its lease, keeps the lease as long as the task lives, writes how it ended."""
