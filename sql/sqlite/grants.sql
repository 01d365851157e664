-- SQLite has no users: who may read or write the file may do everything with it.
--
-- Beats and workers need to read and write three files, jobs.db and beside it jobs.db-wal and jobs.db-shm, and to create
-- the last two: so the right to write in their folder. Give the folder to one group of its own:
--
--   install -d -m 2770 -g sqlbeat /var/lib/sqlbeat
--   umask 007, for every beat and worker
--
-- Local disks only: on a network share the locks of the files, and so the claims, cannot be relied on.
SELECT 'SQLite has no users; see the comments of this script' AS Note;
