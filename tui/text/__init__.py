"""Text and number formats that several screens and commands share."""
