"""The detail pane's tabs, one file each. Tabs return lines and do not depend on widgets."""
