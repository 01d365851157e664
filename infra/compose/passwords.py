"""Print the .env of docker-compose.yml: new random passwords for a server that only you can reach.

They have letters and digits only, so that they need no escaping in a URL, and three kinds of
characters, which SQL Server demands.
"""

import secrets

NAMES = ("MSSQL_SA_PASSWORD", "SQLBEAT_PASSWORD", "RABBITMQ_PASSWORD")


def password() -> str:
    """Return a password of 128 random bits."""
    return f"Sq1{secrets.token_hex(16)}"


if __name__ == "__main__":
    print("# Written by make up. Where it is lost, the volumes must go, too: docker compose down --volumes")
    for name in NAMES:
        print(f"{name}={password()}")
