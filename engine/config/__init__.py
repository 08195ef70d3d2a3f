"""Configuration of a search: read a TOML file, return a validated ``Config``, and report errors by file and line."""
