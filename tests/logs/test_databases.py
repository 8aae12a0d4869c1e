"""Databases of SQLite: what is committed is durable, and nothing of what was deleted stays."""

from fl_dpftrl.logs import databases, ledgers, pseudonyms


def test_settings_of_each_kind_of_database(tmp_path):
  of = lambda database, *names: [
    database.execute(f'PRAGMA {name}').fetchone()[0]
    for name in ('synchronous', 'trusted_schema', 'journal_mode', *names)
  ]
  names = pseudonyms.Names(tmp_path / 'names', tmp_path / 'kept' / 'salt', is_new=True)
  with names._database() as database:
    assert of(database, 'secure_delete', 'temp_store') == [3, 0, 'delete', 1, 2]
  with databases.opened(names.path) as database:  # As the ledger of a population.
    assert of(database) == [3, 0, 'delete']
  with ledgers.LogWriter(tmp_path / 'log.parquet') as log:
    assert of(log._database, 'locking_mode') == [2, 0, 'wal', 'exclusive']
