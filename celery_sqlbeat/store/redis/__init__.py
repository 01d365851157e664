"""A store on a Redis server: connections, and the place of its rows."""
