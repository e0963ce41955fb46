"""Plans: operators prepared for everything but the data, and the arithmetic they compute."""
