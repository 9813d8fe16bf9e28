"""What Algorithm 1 leans on: a guard against training that explodes, the monitor of the rounds, checkpoints."""
