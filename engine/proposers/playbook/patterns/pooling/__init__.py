"""Max and average pooling over one, two or three spatial dimensions, with elementwise operators after it."""
