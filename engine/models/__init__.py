"""Language models: one attempt, its retries, what it costs. Who writes prompts and reads replies: ``engine.proposers``."""
