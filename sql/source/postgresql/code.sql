-- name: lock_releases
-- Imports of one owner come one after the other; the lock ends with the transaction.
SELECT
    pg_advisory_xact_lock(
        hashtext('celery_sqlbeat import'),
        hashtext(current_schema() || ' ' || CAST(:namespace AS text) || ' ' || CAST(:code_owner AS text))
    );
