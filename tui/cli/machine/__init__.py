"""Commands that set up or check this machine: doctor, init, problems and completion."""
