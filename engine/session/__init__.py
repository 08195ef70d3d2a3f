"""A session: its records, the state that follows from them, and the SQLite file that stores them."""
