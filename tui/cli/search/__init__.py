"""Commands that show a search, and start or resume it first: run, resume, attach, replay."""
