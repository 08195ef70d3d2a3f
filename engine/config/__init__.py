"""The configuration of a search: a validated ``Config`` from a TOML file, with errors that name the file and line."""
