"""The detail of the selected node, one file per tab; each gives lines and knows no widget."""
