"""Plans: operators prepared for everything but the data, and the calls that find and run them."""
