"""The monitor's screens, one file each."""
