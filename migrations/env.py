"""Runs the migrations on the connection that is handed over, or on the database that is named.

The library hands over a connection with a transaction begun.  For work on the migrations themselves, alembic can be
run from the root of a checkout: the database is that of SAFEWRITE_DATABASE_URL.
"""

from __future__ import annotations

import os

from alembic import context
from sqlalchemy import Connection, create_engine

from safewrite.ledger.guards import recreate
from safewrite.ledger.statements import VERSION_TABLE
from safewrite.ledger.tables import metadata


def run(connection: Connection) -> None:
    steps: list[object] = []
    context.configure(
        connection=connection,
        target_metadata=metadata,
        version_table=VERSION_TABLE,
        include_name=lambda name, kind, _: kind != "table" or name in metadata.tables,
        on_version_apply=lambda **step: steps.append(step["step"]),
        render_as_batch=True,
        transactional_ddl=True,
    )
    with context.begin_transaction():
        context.run_migrations()
        if steps:
            recreate(connection.dialect.name, connection.exec_driver_sql)


def main() -> None:
    given = context.config.attributes.get("connection")
    if given is not None:
        run(given)
        return
    engine = create_engine(os.environ["SAFEWRITE_DATABASE_URL"])
    with engine.begin() as connection:
        run(connection)
    engine.dispose()


main()
