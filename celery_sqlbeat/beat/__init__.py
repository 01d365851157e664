"""Beat: claims what is due, publishes it, and takes back what nobody finished. It cannot finish a run."""
