"""The monitor's colors: a style for each meaning, derived from the theme and the terminal's color depth."""
