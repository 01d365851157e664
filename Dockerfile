# The example project with the package, as a shop would build its own image; and the tests on top of it.
FROM python:3.13-slim-bookworm AS app

# What no wheel brings: the driver manager under pyodbc, and Kerberos' library, which Microsoft's driver loads.
RUN apt-get update -q \
    && apt-get install -q -y --no-install-recommends unixodbc libgssapi-krb5-2 \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 10001 --create-home shop

WORKDIR /srv
COPY pyproject.toml README.md LICENSE ./
COPY celery_sqlbeat celery_sqlbeat
COPY sql sql
COPY example_project example_project
RUN pip install --no-cache-dir '.[mssql,redis]' \
    && rm -rf celery_sqlbeat sql pyproject.toml README.md LICENSE

ENV PYTHONUNBUFFERED=1
USER shop
CMD ["celery", "-A", "example_project", "sqlbeat", "status"]


# The tests run from the source tree, against the servers of docker-compose.yml.
FROM app AS test

USER root
WORKDIR /src
COPY . .
RUN pip install --no-cache-dir --upgrade 'pip>=25.1' \
    && pip install --no-cache-dir --constraint constraints-dev.txt --group dev --editable '.[mssql,postgresql,redis,solar]' \
    && chown -R shop /src
USER shop
CMD ["python", "-m", "pytest", "tests/contract"]
