"""The monitor: a Textual app that follows one session and writes requests to its engine."""
