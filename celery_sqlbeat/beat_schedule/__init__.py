"""The `beat_schedule` of an app, brought into the table and kept there."""
