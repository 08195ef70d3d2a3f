"""The engine as a background process: start the engine, watch it, and kill every process that it leaves behind."""
