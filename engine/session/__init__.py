"""A session: its records, the state folded from these records, and the SQLite file that stores the records."""
