"""Options, errors and helpers that several commands share."""
