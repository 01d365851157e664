"""The store on a SQL database: sessions, statements, and what each verb does."""
