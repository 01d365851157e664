"""Settings, their validation, the database's URL and its redaction, and the policies of jobs."""
