"""Calls to language models: attempts, retries, cost and recording, independent of the prompts' content."""
