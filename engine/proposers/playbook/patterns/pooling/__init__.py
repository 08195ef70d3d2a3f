"""Max and average pooling over one, two or three spatial dimensions, with an elementwise epilogue."""
