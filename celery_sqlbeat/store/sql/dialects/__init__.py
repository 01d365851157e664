"""One folder of modules for what databases say differently."""
