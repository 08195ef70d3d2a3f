"""Commands that start, resume, show or replay a search: run, resume, bench, attach, serve and replay."""
