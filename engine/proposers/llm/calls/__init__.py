"""Calls to language models: attempts, retries, cost and recording, independent of what the prompts say."""
