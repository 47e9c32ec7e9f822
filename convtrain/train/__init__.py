"""Training: session, epoch loop, schedule, and what a finished run leaves behind."""
