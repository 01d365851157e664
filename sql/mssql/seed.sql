-- One sample job, to see a fire: every minute, from one minute after the first beat has seen it. May be run again.
SET NOCOUNT ON;
SET XACT_ABORT ON;
SET QUOTED_IDENTIFIER ON;
GO

INSERT INTO dbo.Jobs (JobName, TaskName, Schedule, Kwargs)
SELECT N'sample', N'tasks.add', N'every 60s', N'{"x": 1, "y": 2}'
WHERE NOT EXISTS (SELECT 1 FROM dbo.Jobs WITH (UPDLOCK, HOLDLOCK) WHERE Namespace = N'default' AND JobName = N'sample');
GO
