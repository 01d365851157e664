-- One sample job, to see a fire: every minute, from one minute after the first beat has seen it. May be run again.
INSERT INTO Jobs (JobName, TaskName, Schedule, Kwargs)
VALUES ('sample', 'tasks.add', 'every 60s', '{"x": 1, "y": 2}')
ON DUPLICATE KEY UPDATE JobName = VALUES(JobName);
