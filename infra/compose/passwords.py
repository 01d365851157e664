"""Prints the .env that docker-compose.yml reads: new random passwords, for a server that nobody else can reach.

Only letters and digits, so that each fits into a URL as it is; and of three kinds, as SQL Server wants them.
"""

import secrets

NAMES = ("MSSQL_SA_PASSWORD", "SQLBEAT_PASSWORD", "RABBITMQ_PASSWORD")


def password() -> str:
    """A password of 128 random bits."""
    return f"Sq1{secrets.token_hex(16)}"


if __name__ == "__main__":
    print("# Written by make up. Where it is lost, the volumes must go, too: docker compose down --volumes")
    for name in NAMES:
        print(f"{name}={password()}")
