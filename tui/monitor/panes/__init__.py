"""The monitor's panes, one file each."""
