"""The configuration of a search: a validated ``Config`` from a TOML file, with errors by file and line."""
